"""Fields that no verdict rests on, each with the reason. A change of any other field is noticed.

A path names the file and the field; * stands for an index, a name or a rank. tests/judge/test_tampering.py changes
every field of every file, one at a time, and finds exactly these to pass.
"""

from __future__ import annotations

NOT_EVIDENCE: dict[str, str] = {}
