"""{"text": …} becomes {"words": [ … ]}."""

import json
import sys

json.dump({"words": json.load(sys.stdin)["text"].split()}, sys.stdout)
