"""An OpenAI-compatible server. `playhead serve MODEL` runs it; `backend.py` and `call.py` say how its parts meet."""
