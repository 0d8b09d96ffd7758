"""`python -m mq_broker.console` does the same as `mq`."""

import sys

from mq_broker.console.main import main

sys.exit(main())
