"""`python -m mq_broker.console` is `mq`."""

import sys

from mq_broker.console.main import main

sys.exit(main())
