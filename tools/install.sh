#!/bin/sh
# Makes .venv and installs Playhead into it: `sh tools/install.sh STAMP [EXTRAS]`. The Makefile calls it.
#
# STAMP is touched when the installation is complete. Without EXTRAS only what the `playhead` command needs is installed.
# PYTHON names the Python to use; without it, the first of python3, python3.13, python3.12, python3.11 that is new enough.
set -eu

stamp=$1
extras=${2:-}
python=.venv/bin/python

say() { echo "playhead: $1"; }

refuse() {
    say "$1" >&2
    exit 1
}

is_new_enough() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; }

version_of() { "$1" -c 'import sys; print("Python %d.%d" % sys.version_info[:2])' 2>/dev/null || echo "not there"; }

if [ ! -x $python ]; then
    base=""
    for candidate in ${PYTHON:-python3 python3.13 python3.12 python3.11}; do
        if is_new_enough "$candidate"; then
            base=$candidate
            break
        fi
    done
    if [ -z "$base" ]; then
        asked=${PYTHON:-python3}
        refuse "$asked is $(version_of "$asked"); Playhead needs Python 3.11 or newer. Install it and name it: make PYTHON=/path/to/python3.11 demo"
    fi
    say "making .venv with $base, $(version_of "$base")"
    "$base" -m venv .venv || refuse "$base made no .venv, for the reason above. On Debian and Ubuntu: apt install python3-venv"
elif ! is_new_enough $python; then
    refuse ".venv has $(version_of $python); Playhead needs Python 3.11 or newer. Run: make clean, then make PYTHON=/path/to/python3.11 demo"
fi

say "installing into .venv: playhead${extras:+[$extras]}"
if ! $python -c 'import torch' 2>/dev/null; then
    say "torch comes with it: about 1 GB on disk in all. Where pip finds no CPU build of torch it takes the CUDA build, about 3 GB."
    say "to choose the CPU build: PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu make demo"
fi
$python -m pip install --disable-pip-version-check -c constraints.txt -e ".${extras:+[$extras]}"
touch .venv/.core "$stamp"
say "installed: .venv/bin/playhead (source .venv/bin/activate puts it on the path)"
