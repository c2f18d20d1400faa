from harness.cli.cli import main

raise SystemExit(main())
