import sys

from tidegate_client.cli import main

sys.exit(main())
