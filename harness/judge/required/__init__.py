"""The evidence required before a cell gets a verdict, derived from its configuration and the plan alone.

| module | subject |
|---|---|
| identity | files, attempt, result and records are of this cell and of one attempt: checked first |
| earlier | whether an undecided earlier attempt may have been a failure |
| expected | what each rank must have recorded |
| legs, reports, model, facts, timing | whether it has, by subject: checked if every rank completed |
| compared | whether the cells can be compared with that a cell is compared with |
| sums | whether numbers that the harness computed twice agree |
| numbers | every number is finite and possible; how many there are |
"""
