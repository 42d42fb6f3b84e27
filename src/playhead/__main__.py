"""`python -m playhead` is `playhead`."""

from playhead.cli.entry import main

main()
