"""A process that stores one large object, to be killed while it does.

python obj_upload_child.py URL OPTIONS_AS_JSON
"""

from __future__ import annotations

import json
import sys

from obj_support import drive, open_tier

from kvoffload.testing.tier_driver import make_keys

url, options = sys.argv[1], json.loads(sys.argv[2])
drive(open_tier(url, multipart_bytes=8192, **options)).store(make_keys(3))
