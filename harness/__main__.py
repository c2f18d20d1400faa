from harness.app.cli import main

raise SystemExit(main())
