"""`harness selftest`: inject the catalogued faults; each must be caught at its location, and clean twins must pass.

The cells are planned, launched and judged like those of any run; this module only checks the report.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from harness.campaign import campaign, plan_run, reports
from harness.core.cell.config import CellConfig
from harness.core.cell.identity import cell_id, cell_name
from harness.core.errors import InputError
from harness.core.outcomes import EXIT_FAIL, EXIT_PASS, EXIT_UNDECIDED, Finding, Lane, LaneVerdict, Outcome
from harness.core.run.report import Report, ReportCell
from harness.core.run.run_dir import RunDir, write_json
from harness.core.run.run_plan import Allocation, Expansion, PlannedCell, RunPlan
from harness.core.stack import DEFAULT, Stack
from harness.faults.catalogue import FAULTS, catalogue_text, demand_text, faults_named, where_text
from harness.faults.spec import (
    DEADLINE_S,
    STACK_OF_MEGATRON_RL,
    STACK_OF_NEMO_RL,
    STACK_OF_TRAINERS,
    STACK_OF_VERL,
    FaultSpec,
)
from harness.infra import screen
from harness.infra.files import matrix_path
from harness.inputs.matrix_file import read_matrix
from harness.launch.stacks.interpreters import require_torch
from harness.launch.stacks.prepare import prepare
from harness.matrix.stacks.section import is_url
from harness.reporting.console import say

STACKS = (
    STACK_OF_TRAINERS,
    STACK_OF_VERL,
    STACK_OF_NEMO_RL,
    STACK_OF_MEGATRON_RL,
)


@dataclass(frozen=True, kw_only=True)
class Caught:
    """The result of one fault. `problems` is empty when every requirement is met."""

    fault: str
    fault_class: str
    cell: str
    twin: str
    demanded: str
    outcome: Outcome
    found: str  # the leading finding: lane, check
    place: str
    message: str
    caught: bool  # the outcome is the expected one
    right_lane: bool
    right_place: bool
    problems: list[str] = field(default_factory=list)


def run(only: Sequence[str], run_parent: Path, *, trainers: bool = False) -> int:
    """Run the self-test, print the table, return the exit code. InputError for a fault that does not exist."""
    specs = choose(only, trainers=trainers)
    if trainers and not only:
        specs = with_clones(specs)
    plan = in_stacks(plan_faults(specs))
    directory = RunDir(run_parent.resolve() / plan.run_id)
    report = campaign.run(directory, plan)
    paths = reports.write_reports(directory, report)
    results = [judge_fault(spec, report) for spec in specs]
    alarms = false_alarms(specs, report)
    write_json(directory.root / "selftest.json", _summary(report, results, alarms), indent=2)
    screen.out(_text(results, alarms, report))
    screen.out(f"report: {directory.root / 'selftest.json'}\nreport: {paths[-1]}")
    return exit_code_of(results, alarms)


def list_faults() -> int:
    """Describe the faults; inject none."""
    screen.out(screen.wrapped(catalogue_text(FAULTS)))
    return EXIT_PASS


def choose(only: Sequence[str], *, trainers: bool = False) -> list[FaultSpec]:
    """Return the named faults, or all that need a stack, or all others. InputError naming every unknown one."""
    if only:
        return faults_named(only, "--only")
    return [spec for spec in FAULTS if (spec.stack != DEFAULT) is trainers]


def plan_faults(specs: Iterable[FaultSpec]) -> RunPlan:
    """Plan each fault's cell with its clean twin and its control; twins and controls are shared."""
    cells: dict[str, PlannedCell] = {}
    for spec in specs:
        control = _planned(spec, spec.control, None)
        twin, faulty = (_planned(spec, config, control.id) for config in (spec.twin, spec.faulty))
        base = twin.id if spec.timing.turns else None
        for cell in (control, twin, replace(faulty, base=base)):
            shared = cells.get(cell.id, cell)
            canaries = dict.fromkeys((*shared.config.canaries, *cell.config.canaries))
            cells[cell.id] = replace(shared, config=replace(shared.config, canaries=tuple(canaries)))
    expansion = Expansion(cells=tuple(cells.values()), rejected=())
    plan = plan_run.plan_cells(expansion, name="selftest", file="selftest", command=["harness", "selftest"])
    return replace(plan, allocations=tuple(part for whole in plan.allocations for part in _allocations(whole, cells)))


def _planned(spec: FaultSpec, config: CellConfig, control: str | None) -> PlannedCell:
    """Return a cell without a matrix: the command that reproduces it names the fault."""
    layout = config.layout
    axes: dict[str, Any] = {"tp": layout.tp, "pp": layout.pp, "cp": layout.cp, "packing": config.data_path}
    axes["fault"] = config.fault or "none"
    name = cell_id(config)
    return PlannedCell(
        id=name,
        axes=axes,
        config=config,
        group=control or name,
        control=control,
        role="cell" if control else "control",
        reproduce=f"harness selftest --only {spec.name}",
    )


def _allocations(whole: Allocation, cells: Mapping[str, PlannedCell]) -> Iterator[Allocation]:
    """Yield two allocations for interleaved cells, which here share one stack; a third for the rest."""
    timings = {cell: cells[cell].config.timing for cell in whole.cells}
    for side, first in (("base", True), ("other", False)):
        members = tuple(cell for cell, timing in timings.items() if timing.turns and timing.first is first)
        if members:
            yield replace(whole, name=f"interleaved-{side}", cells=members, ranks_per_node=1, interleaved=True)
    rest = tuple(cell for cell, timing in timings.items() if not timing.turns)
    if rest:
        yield _hangs_first(replace(whole, cells=rest, interleaved=False), cells)


def _hangs_first(allocation: Allocation, cells: Mapping[str, PlannedCell]) -> Allocation:
    """Return the allocation with cells that may hang in front, so that others run beside them while they wait."""
    ordered = sorted(allocation.cells, key=lambda cell: cells[cell].config.deadline_s >= DEADLINE_S)
    return replace(allocation, cells=tuple(ordered))


def judge_fault(spec: FaultSpec, report: Report) -> Caught:
    """Compare the report's verdict on the fault's cell with the catalogue."""
    cell = _cell(report, cell_id(spec.faulty))
    findings = cell.findings
    first = findings[0] if findings else None
    caught = cell.outcome is spec.outcome
    lane_problems = _lane_problems(spec, cell)
    absent = [check for check in spec.checks if not any(finding.check == check for finding in findings)]
    elsewhere = [
        check
        for check, where in spec.also.items()
        if check not in absent and not any(f.check == check and _holds(f.where, where) for f in findings)
    ]
    right_place = first is not None and _holds(first.where, spec.where) and not elsewhere
    problems = [] if caught else [f"the outcome is {cell.outcome.value} ({cell.reason or 'no reason'})"]
    problems += lane_problems + [f"{check} has no finding" for check in absent]
    problems += [f"{check} names another place than {where_text(spec.also[check])}" for check in elsewhere]
    if first is not None and not right_place and not elsewhere:
        problems.append(f"{first.check} names another place: {where_text(first.where)}")
    return Caught(
        fault=spec.name,
        fault_class=spec.fault_class,
        cell=cell.id,
        twin=cell_id(spec.twin),
        demanded=demand_text(spec),
        outcome=cell.outcome,
        found=f"{first.lane.value}: {first.check}" if first else "nothing",
        place=_place(first),
        message=first.message if first else cell.reason,
        caught=caught,
        right_lane=not lane_problems,
        right_place=right_place,
        problems=problems,
    )


def _cell(report: Report, name: str) -> ReportCell:
    cell_found = next((cell for cell in report.cells if cell.id == name), None)
    if cell_found is None:
        rejected = next((cell.reason for cell in report.rejected if cell.id == name), "it is not in the report")
        raise InputError(f"cell {name} cannot run here: {rejected}")
    return cell_found


def _lane_problems(spec: FaultSpec, cell: ReportCell) -> list[str]:
    """Return problems unless the leading finding has the right lane and check, its lane fails, earlier ones pass."""
    if not cell.findings:
        return ["no check has a finding"]
    first = cell.findings[0]
    problems = []
    if (first.lane, first.check) != (spec.lane, spec.checks[0]):
        problems.append(f"the leading finding is {first.lane.value}: {first.check}")
    if spec.outcome is Outcome.FAIL and cell.lanes[spec.lane] is not LaneVerdict.FAIL:
        problems.append(f"the verdict of lane {spec.lane.value} is {cell.lanes[spec.lane].value}")
    earlier = {Lane.METADATA: (), Lane.NUMERICS: (Lane.METADATA,), Lane.THROUGHPUT: (Lane.METADATA, Lane.NUMERICS)}
    for lane in earlier[spec.lane]:
        if cell.lanes[lane] is not LaneVerdict.PASS:
            problems.append(
                f"the verdict of lane {lane.value} is {cell.lanes[lane].value} instead of {LaneVerdict.PASS.value}"
            )
    return problems


def _holds(where: Mapping[str, Any], demanded: Mapping[str, Any]) -> bool:
    return all(key in where and where[key] == value for key, value in demanded.items())


def _place(finding: Finding | None) -> str:
    """Return the place of a finding as text: its coordinates and ranks."""
    if finding is None:
        return ""
    names = ("stage", "tp", "cp", "dp", "layer", "field", "document", "parameter", "ranks")
    return where_text({name: finding.where[name] for name in names if name in finding.where})


def false_alarms(specs: Iterable[FaultSpec], report: Report) -> list[ReportCell]:
    """Return clean twins and controls that did not pass."""
    names = {cell_id(config) for spec in specs for config in (spec.twin, spec.control)}
    return [cell for cell in (_cell(report, name) for name in sorted(names)) if cell.outcome is not Outcome.PASS]


def exit_code_of(results: Sequence[Caught], alarms: Sequence[ReportCell]) -> int:
    """Return 1 for a missed fault or a false alarm; 3 when only infrastructure problems prevent a decision; else 0."""
    missed = [result for result in results if result.problems]
    undecided = [result for result in missed if not result.caught and result.outcome is Outcome.ERROR]
    broken = [cell for cell in alarms if cell.outcome is Outcome.ERROR]
    if len(missed) > len(undecided) or len(alarms) > len(broken):
        return EXIT_FAIL
    return EXIT_UNDECIDED if undecided or broken else EXIT_PASS


def _score(results: Sequence[Caught], alarms: Sequence[ReportCell]) -> dict[str, int]:
    return {
        "faults": len(results),
        "caught": sum(result.caught for result in results),
        "right_lane": sum(result.right_lane for result in results),
        "right_place": sum(result.right_place for result in results),
        "all_demands_met": sum(not result.problems for result in results),
        "false_alarms": len(alarms),
    }


def _summary(report: Report, results: Sequence[Caught], alarms: Sequence[ReportCell]) -> dict[str, Any]:
    """Return selftest.json, schema_version 1."""
    clean_cells = [cell for cell in report.cells if cell.axes["fault"] == "none"]
    return {
        "schema_version": 1,
        "run_id": report.run_id,
        "score": _score(results, alarms),
        "timing": report.timing,
        "faults": results,
        "clean": [{"cell": cell.id, "role": cell.role, "outcome": cell.outcome} for cell in clean_cells],
    }


def _text(results: Sequence[Caught], alarms: Sequence[ReportCell], report: Report) -> str:
    """Return the table, the problems of each fault, and the score."""
    layouts = {spec.name: cell_name(spec.twin) for spec in FAULTS}
    head = ("", "fault", "class", "cell", "caught by", "place")
    rows = [
        (
            "ok" if not result.problems else "MISS",
            result.fault,
            result.fault_class,
            layouts[result.fault],
            result.found,
            result.place,
        )
        for result in results
    ]
    widths = [max(len(row[column]) for row in (head, *rows)) for column in range(len(head))]
    lines = ["  ".join(text.ljust(width) for text, width in zip(row, widths)).rstrip() for row in (head, *rows)]
    for result in results:
        if result.problems:
            lines += ["", f"MISS {result.fault}: {'; '.join(result.problems)}", f"  required: {result.demanded}"]
            lines += [f"  {result.message}", f"  reproduce: harness selftest --only {result.fault}"]
    for cell in alarms:
        why = cell.first.message if cell.first else cell.reason
        lines += ["", f"FALSE ALARM {cell.id}: {cell.outcome.value}: {why}"]
    score = _score(results, alarms)
    lines += ["", f"{score['caught']} of {score['faults']} faults caught, {score['right_lane']} in the right lane, "
              f"{score['right_place']} at the right place; {score['false_alarms']} false alarms in "
              f"{sum(cell.axes['fault'] == 'none' for cell in report.cells)} clean cells; "
              f"{report.timing.get('wall_s', 0.0):.0f} s"]  # fmt: skip
    return "\n".join(lines)


def stacks_of(names: Iterable[str]) -> list[Stack]:
    """Return the definitions of the named stacks."""
    wanted = set(names)
    return [read_matrix(matrix_path(matrix)).stacks[name] for matrix, name in STACKS if name in wanted]


def in_stacks(plan: RunPlan) -> RunPlan:
    """Return the plan with the stacks that its cells need, built unless they exist; some faults have one."""
    names = {cell.config.stack for cell in plan.expansion.cells}
    if DEFAULT in names:
        require_torch()
    stacks = stacks_of(names)
    return plan_run.in_stacks(plan, prepare(stacks, say)) if stacks else plan


def with_clones(specs: Sequence[FaultSpec]) -> list[FaultSpec]:
    """Return the faults whose stacks' clones exist; say which are left out, and which clone they need."""
    absent = {stack.name: place for stack in stacks_of(spec.stack for spec in specs) if (place := _absent_clone(stack))}
    for name, place in absent.items():
        left = [spec.name for spec in specs if spec.stack == name]
        say(f"left out, since no clone is at {place}: {', '.join(left)}")
    return [spec for spec in specs if spec.stack not in absent]


def _absent_clone(stack: Stack) -> str:
    """Return the repository of a checkout that does not exist, or ''."""
    places = (checkout.repository for checkout in stack.checkouts)
    return next((place for place in places if not is_url(place) and not Path(place).exists()), "")
