"""An independent reference of packed training: plain PyTorch in float64, one process, no line of upstream's.

It is for judging every cell, the one-rank cell included, by something that cannot share an error with the code under
test. drawing.py holds the rules by which both sides draw weights and tokens.
"""
