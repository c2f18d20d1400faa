"""A plug-in of packing-harness: a data path with its adapter, a trainer, a model, a check, a rule and a notifier."""
