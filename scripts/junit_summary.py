#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""junit_summary.py FILE...: the sum of ctest's JUnit files as one line, `N passed, N failed, N skipped`.

Skipped: what skipped itself or is disabled. Anything else that did not run (a program that was not built) has failed.
Exit code 1 when something failed or nothing ran.
"""
import sys
import xml.etree.ElementTree as ElementTree


def outcome(case):
    status = case.get("status")
    if status == "run":
        return "passed"
    skipped = case.find("skipped")
    message = skipped.get("message", "") if skipped is not None else ""
    return "skipped" if status == "disabled" or message.startswith("SKIP_") else "failed"


def main(files):
    count = {"passed": 0, "failed": 0, "skipped": 0}
    for file in files:
        for case in ElementTree.parse(file).getroot().iter("testcase"):
            result = outcome(case)
            count[result] += 1
            if result != "passed":
                print(f"{result}: {case.get('name')}", file=sys.stderr)
    print(", ".join(f"{n} {what}" for what, n in count.items()))
    return 1 if count["failed"] or not count["passed"] else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
