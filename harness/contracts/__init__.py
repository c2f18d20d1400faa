"""What upstream promises about packing: suites for pytest that `harness contracts` runs inside a stack."""
