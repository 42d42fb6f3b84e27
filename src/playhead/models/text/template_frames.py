"""How a job and its answer travel to the process that renders chat templates and back. No Jinja."""

from __future__ import annotations

import struct

LENGTH = struct.Struct("<I")
