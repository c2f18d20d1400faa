"""slime (THUDM/slime) under packing-harness; docs/projects.md explains each file."""
