# Runs tests of rdma-core, and adds the results to a file, as lines of JSON.
#
#   runtests.py FOLDER DEVICE GID RESULTS EXCLUDED
#
# FOLDER holds the tests' package. Those with results are left out, so that this can be run again
# after a test has ended it, as one does that takes longer than two minutes. Those that match a line of
# the file EXCLUDED are not run.

import faulthandler
import fnmatch
import json
import os
import sys
import types
import time
import unittest

folder, device, gid, results, excluded = sys.argv[1:]
reasons = [line.rstrip().split(None, 1) for line in open(excluded) if line.strip() and line[0] != "#"]
done = set()
if os.path.exists(results):
    done = {json.loads(line)["Test"] for line in open(results)}
out = open(results, "a")


def write(test, result, reason="", seconds=0):
    out.write(json.dumps({"Test": test.id(), "Result": result, "Reason": reason, "Seconds": seconds}) + "\n")
    out.flush()


class Result(unittest.TestResult):
    def startTest(self, test):
        faulthandler.dump_traceback_later(120, exit=True)
        self.verdict, self.begin = ("ok", ""), time.monotonic()
        write(test, "run")

    def stopTest(self, test):
        faulthandler.cancel_dump_traceback_later()
        write(test, *self.verdict, time.monotonic() - self.begin)

    def addSkip(self, test, reason):
        self.verdict = ("skip", reason)

    def addFailure(self, test, err):
        self.verdict = ("fail", self._exc_info_to_string(err, test))

    addError = addFailure

    def addSubTest(self, test, subtest, err):
        if err is not None:
            self.addFailure(test, err)


def cases(suite):
    if isinstance(suite, unittest.TestCase):
        return [suite]
    return [c for s in suite for c in cases(s)]


sys.path[:0] = [folder, os.path.join(folder, "tests")]
sys.argv[1:] = ["--dev", device] + (["--gid", gid] if gid != "-1" else [])
from args_parser import parser

parser.parse_args()
# utils.py and mlx5_base.py import each other. That works if utils.py is the first, and importing the
# package imports all modules in any order: here it is a package that has not been imported yet.
sys.modules["tests"] = types.ModuleType("tests")
sys.modules["tests"].__path__ = [os.path.join(folder, "tests")]
import tests.utils

del sys.modules["tests"]
import tests

for module in tests.__test_modules__:
    for case in cases(unittest.defaultTestLoader.loadTestsFromModule(module)):
        if case.id() in done:
            continue
        why = [reason for pattern, reason in reasons if fnmatch.fnmatch(case.id(), "tests." + pattern)]
        if why:
            write(case, "skip", why[0])
        else:
            case.run(Result())
