"""Faults in trainers, adapters, images and rollouts, injected in stacks that have them."""
