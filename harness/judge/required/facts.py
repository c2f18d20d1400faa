"""Required facts of a rank: modules, versions, device; and that the supervisor's result agrees with its record."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from harness.core.cell.attention import kind_of, possible_kinds
from harness.core.data_paths.forbidden import FORBIDDEN_CASES
from harness.core.hardware.environment import recorded
from harness.core.run.cell_result import CellResult
from harness.core.run.records import ImportProof, RankRecord, Refusal
from harness.core.upstream import HEADS
from harness.judge.required.expected import Expected

NEEDED = ("torch", "megatron.core")  # modules that every cell trains with
ENVIRONMENT = (
    "host",
    "pid",
    "python",
    "device",
    "processor",
    "torch_device",
    "backend",
    "placed",
    "attention",
    "dtype",
    "memory_limit_bytes",
)
ALIKE = ("backend", "attention", "dtype")  # the same on all ranks of a cell
_BACKENDS = {"cpu": ("gloo",), "cuda": ("nccl", "gloo")}


def problems(expected: Expected, record: RankRecord) -> Iterator[str]:
    """Problems of one completed rank."""
    yield from _environment(expected, record.environment)
    yield from _stubs(record)
    yield from _imports(record)
    yield from _refusal(expected.config.forbidden, record.refusal)
    if (record.upstream_tests is not None) != bool(expected.config.upstream_tests.name):
        yield f"upstream_tests is {record.upstream_tests}, and the cell's is {expected.config.upstream_tests.name!r}"
    seen = record.upstream_tests
    if seen is not None and not seen.passed + seen.failed + seen.skipped:
        yield f"pytest ran none of the tests of {expected.config.upstream_tests.file}"
    for name in ("peak_memory_bytes", "peak_reserved_bytes"):
        if (getattr(record, name) or 0) < 0:
            yield f"{name} is {getattr(record, name)}"
    if not record.setup_s >= 0:
        yield f"setup_s is {record.setup_s!r}"


def _refusal(forbidden: str, found: Refusal | None) -> Iterator[str]:
    if (found is not None) != bool(forbidden):
        yield f"refusal is {'missing' if forbidden else 'present, though the cell has no forbidden combination'}"
    if found is None or not forbidden:
        return
    case = FORBIDDEN_CASES[forbidden]
    for name, held, right in (("validator", found.validator, case.validator), ("wanted", found.wanted, case.pattern)):
        if held != right:
            yield f"refusal: {name} is {held!r}, that of {forbidden} is {right!r}"
    if (found.type is None) != (found.message is None) or found.type == "":
        yield "refusal has a message without a type, or a type without a message"


def _environment(expected: Expected, facts: Mapping[str, str]) -> Iterator[str]:
    absent = [name for name in ENVIRONMENT if not facts.get(name)]
    if absent:
        yield f"environment: {absent[0]} is missing"
        return
    kind = facts["torch_device"].partition(":")[0]
    requested = expected.config.device
    if facts["backend"] not in _BACKENDS.get(kind, ()) or (facts["device"] == "cpu") != (kind == "cpu"):
        yield (
            f"environment: device {facts['device']!r}, torch_device {facts['torch_device']!r} and backend "
            f"{facts['backend']!r} contradict each other"
        )
    if requested != "auto" and requested != kind:
        yield f"environment: torch_device is {facts['torch_device']}, the cell asks for {requested}"
    possible = possible_kinds(expected.config, kind)
    if kind_of(facts["attention"]) not in possible:
        asked = f"the cell asks for {expected.config.attention}: {' or '.join(possible)}"
        yield f"environment: attention is {facts['attention']!r}, {asked}"
    if facts["dtype"] != expected.config.dtype:
        yield f"environment: dtype is {facts['dtype']}, the cell's is {expected.config.dtype}"


def _stubs(record: RankRecord) -> Iterator[str]:
    """Only ranks on the CPU have stubs for CUDA calls, and only those on GPUs over gloo have stubs of gloo."""
    device, backend = record.environment.get("torch_device"), record.environment.get("backend")
    on_cpu = (device or "").startswith("cpu")
    on_shared_gpu = (device or "").startswith("cuda") and backend == "gloo"
    for field, kind, names, needed in (
        ("cpu_stubs", "CPU", record.cpu_stubs, on_cpu),
        ("gloo_stubs", "gloo", record.gloo_stubs, on_shared_gpu),
    ):
        if bool(names) != needed:
            yield f"{field}: {len(names)} {kind} stubs on {device} over {backend}"
        if not all(names) or len(set(names)) != len(names):
            yield f"{field}: a {kind} stub has no name, or is listed twice"


def _imports(record: RankRecord) -> Iterator[str]:
    names = [proof.module for proof in record.imports]
    if len(set(names)) != len(names):
        yield "imports: a module is listed twice"
    for name in NEEDED:
        if name not in names:
            yield f"imports: {name} is missing, so which code ran is unknown"
    for proof in record.imports:
        if not proof.version or not proof.path.startswith("/"):
            yield f"imports: {proof.module} has version {proof.version!r} and path {proof.path!r}"
    for head, below in record.modules.items():
        if not below.split():
            yield f"modules: {head} has no submodules"
    if "megatron.core" not in record.modules:
        yield "modules: megatron.core is missing"


def disagreements(expected: Expected, records: Mapping[int, RankRecord]) -> Iterator[str]:
    """Differences in code or environment between the ranks of a cell, and from its control in the same stack."""
    ranks = sorted(records)
    first = records[ranks[0]]
    proofs = {proof.module: proof for proof in first.imports}
    nodes: dict[int, RankRecord] = {}
    alike: dict[tuple[int, int, int], RankRecord] = {}
    for rank in ranks:
        record = records[rank]
        for name in ALIKE:
            if record.environment[name] != first.environment[name]:
                yield (
                    f"record of rank {rank}: environment: {name} is {record.environment[name]!r}, on rank {ranks[0]} "
                    f"{first.environment[name]!r}"
                )
        node = rank // expected.ranks_per_node
        yield from _of_one_agent(record, nodes.setdefault(node, record))
        yield from _same_heads(record, alike.setdefault((node, record.place.tp, record.place.pp), record))
        if record.warmup_rounds != first.warmup_rounds:
            yield (
                f"record of rank {rank}: warmup_rounds is {record.warmup_rounds}, on rank {ranks[0]} "
                f"{first.warmup_rounds}"
            )
        yield from _same_code(record.imports, proofs, f"record of rank {rank}", f"rank {ranks[0]}")
    yield from _processors(expected)
    control = expected.evidence.control
    if control is not None and control.cell.config.stack == expected.config.stack:
        for record in control.records.values():
            heads = [proof for proof in record.imports if proof.module in HEADS]
            yield from _same_code(heads, proofs, "record of the control", "the cell")


def _of_one_agent(record: RankRecord, other: RankRecord) -> Iterator[str]:
    """Ranks of one node are forked by one agent: same stubs, same variables that choose kernels and networks.

    `other`: the node's first rank.
    """
    who, same = f"record of rank {record.rank}", f"rank {other.rank} of the same node"
    for name in ("cpu_stubs", "gloo_stubs"):
        if getattr(record, name) != getattr(other, name):
            yield f"{who}: {name} are not those of {same}"
    found, right = _shared(record), _shared(other)
    if found != right:
        name = min(name for name in found.keys() | right.keys() if found.get(name) != right.get(name))
        yield f"{who}: environment: {name} is {found.get(name)!r}, on {same} {right.get(name)!r}"


def _same_heads(record: RankRecord, other: RankRecord) -> Iterator[str]:
    """Ranks of one node with the same tp and pp do the same, so they have imported the same modules under test.

    Others may import more while they run: the first tensor parallel rank of a stage that reads the data, for example.
    `other`: the first such rank.
    """
    odd = _heads(record) ^ _heads(other)
    if odd:
        has, lacks = (record, other) if min(odd) in _heads(record) else (other, record)
        yield f"record of rank {lacks.rank}: imports: {min(odd)} is missing, which rank {has.rank} of the same node has"


def _heads(record: RankRecord) -> set[str]:
    return {proof.module for proof in record.imports if proof.module in HEADS}


def _shared(record: RankRecord) -> dict[str, str]:
    return recorded(record.environment) | {"host": record.environment["host"]}


def _processors(expected: Expected) -> Iterator[str]:
    """Every rank on a host names the same processor, by which earlier runs are chosen; those of the control too."""
    control = expected.evidence.control
    hosts: dict[str, tuple[str, str]] = {}
    for who, records in (
        ("rank", expected.evidence.records),
        ("the control's rank", control.records if control else {}),
    ):
        for rank, record in sorted(records.items()):
            facts = record.environment
            host, found = facts.get("host", ""), facts.get("processor", "")
            right, first = hosts.setdefault(host, (found, f"{who} {rank}"))
            if found != right:
                yield f"environment: processor of {who} {rank} is {found!r}, of {first} on the same host {right!r}"


def _same_code(imports: list[ImportProof], others: Mapping[str, ImportProof], who: str, than: str) -> Iterator[str]:
    for proof in imports:
        other = others.get(proof.module)
        if other is not None and other != proof:
            yield (
                f"{who}: imports: {proof.module} is {proof.version} from {proof.path}, on {than} {other.version} from "
                f"{other.path}"
            )


def result_problems(expected: Expected, result: CellResult) -> Iterator[str]:
    """Where the supervisor's result contradicts records that all say completed."""
    world = expected.layout.world_size
    if sorted(ending.rank for ending in result.ranks) != list(range(world)):
        yield f"endings of {len(result.ranks)} of {world} ranks"
    for ending in result.ranks:
        if (ending.ended, ending.exit_code, ending.hang) != ("completed", 0, None):
            hang = f", hanging in {ending.hang}" if ending.hang else ""
            how = f"{ending.ended} with exit code {ending.exit_code}{hang}"
            yield f"rank {ending.rank} {how}, though its record says completed"
        if (ending.stack, ending.flight, ending.still_s) != (None, [], None):
            yield f"rank {ending.rank} has signs of a hang (stack, flight, still_s), though its record says completed"
    for name in ("reason", "rejection", "first_failure_rank"):
        if getattr(result, name) not in ("", None):
            yield f"status is completed, but {name} is {getattr(result, name)!r}"
