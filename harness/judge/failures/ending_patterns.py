"""Failure classes that no text identifies: recognised by how ranks ended, and by the code that raised."""

from __future__ import annotations

from harness.judge.failures.pattern_row import Domain, Pattern, Retry, Role

HANG = Pattern(
    name="hang",
    title="hang in a collective",
    domain=Domain.CODE,
    role=Role.ROOT,
    retry_advice=Retry.NEVER,
    advice="Compare the stacks of the ranks that waited with that of the rank that never arrived.",
)
FROZEN = Pattern(
    name="frozen-process",
    title="frozen process",
    domain=Domain.INFRASTRUCTURE,
    role=Role.ROOT,
    retry_advice=Retry.OTHER_NODES,
    advice="The process could not even write its stack: check whether it was stopped, swapped out, or blocked in the "
    "kernel (D state) on that node.",
)
STALLED = Pattern(
    name="collective-stall",
    title="collective that did not end",
    domain=Domain.UNKNOWN,
    role=Role.ROOT,
    retry_advice=Retry.UNKNOWN,
    advice="Every rank had entered the same collective, so none is late: check the network between the nodes.",
)
UNREACHABLE = Pattern(
    name="store-unreachable",
    title="ranks did not connect",
    domain=Domain.INFRASTRUCTURE,
    role=Role.CASCADE,
    retry_advice=Retry.OTHER_NODES,
    advice="Check whether rank 0 started, and whether the other nodes can reach its node's address and port.",
)
ABSENT_NAME = Pattern(
    name="absent-name",
    title="name that the stack lacks",
    domain=Domain.UNKNOWN,
    role=Role.ROOT,
    retry_advice=Retry.NEVER,
    advice="Use a commit or release that has the name. If upstream has renamed it for good, the harness must follow.",
)
SETUP = Pattern(
    name="setup-error",
    title="ranks could not be set up",
    domain=Domain.UNKNOWN,
    role=Role.ROOT,
    retry_advice=Retry.UNKNOWN,
    advice="It failed before any code under test ran: read the traceback, and check that node's device and network.",
)
HARNESS_DEFECT = Pattern(
    name="harness-defect",
    title="defect of the harness",
    domain=Domain.HARNESS,
    role=Role.ROOT,
    retry_advice=Retry.NEVER,
    advice="The code under test is not to blame: please report this with the log and the version of the harness.",
)
REPLACEMENT = Pattern(
    name="replacement-kernel",
    title="limit of a replacement kernel",
    domain=Domain.HARNESS,
    role=Role.ROOT,
    retry_advice=Retry.NEVER,
    advice="The harness's replacement of a GPU kernel refused a call that the real kernel may accept: run the cell on "
    "a GPU, and please report this with the log.",
)
PYTHON = Pattern(
    name="python-exception",
    title="Python exception",
    domain=Domain.CODE,
    role=Role.ROOT,
    retry_advice=Retry.NEVER,
    advice="Read the traceback of this rank.",
)
NATIVE_CRASH = Pattern(
    name="native-crash",
    title="native crash or exit",
    domain=Domain.CODE,
    role=Role.ROOT,
    retry_advice=Retry.NEVER,
    advice="Read the end of this rank's log: the interpreter dumps the stack there on a crash.",
)
DEADLINE = Pattern(
    name="deadline",
    title="cell deadline passed",
    domain=Domain.UNKNOWN,
    role=Role.ROOT,
    retry_advice=Retry.UNKNOWN,
    advice="Nothing proves a hang, so the cell may only be slow: raise deadline_s, or read the stack dumps.",
)
UNKNOWN = Pattern(
    name="unknown",
    title="unknown",
    domain=Domain.UNKNOWN,
    role=Role.ROOT,
    retry_advice=Retry.UNKNOWN,
    advice="The cause is unknown: read the logs of the attempt and of its job.",
)
