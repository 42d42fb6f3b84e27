"""What clients send and get, as the `openai` package writes and reads it. Structs, and no work.

`fields.py` has what several requests share; `notes.py` says which fields are ignored and which refused.
"""
