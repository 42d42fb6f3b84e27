"""A load tool for any OpenAI-compatible server: `playhead bench serve` and `playhead bench compare`. No torch.

plan.py       a seed and lengths -> requests, each with the moment it is sent
client.py     sends them on those moments, whatever the server does (an open loop), and times every event
figures.py    percentiles, throughput, goodput
report.py     one HTML file        compare.py    two results, and which differences are more than noise

The client is asyncio of the standard library alone. Figures need numpy.
"""
