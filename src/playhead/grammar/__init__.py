"""Grammars as token masks: which tokens may come next, by llguidance. No torch.

`GrammarCompiler` makes a `Grammar` of what a request wants (`StructuredOutputs`), once for equal wishes. A `Matcher` is
where one answer stands in its grammar. llguidance is the extra `playhead[structured]` and is imported on first use.
"""
