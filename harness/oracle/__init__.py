"""An independent reference of packed training: plain PyTorch in float64, one process, no line of upstream's.

It is for judging every cell, the one-rank cell included, by something that cannot share an error with the code under
test. `train.train(config, built)` computes all that a cell must; `fields.uncovered(built)` names what it would not
compute as upstream does. Read it as a specification, in this order: rows.py, weights.py, layers.py, attention.py,
experts.py, model.py, loss.py, optimizer.py, train.py. drawing.py has the rules by which both sides draw.
"""
