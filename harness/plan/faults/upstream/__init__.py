"""Faults in trainers, adapters, images, rollouts and the packing scheduler, injected in stacks that have them."""
