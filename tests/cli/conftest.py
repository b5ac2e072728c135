"""What the tests of the command line share: the client's broker beside them."""

from __future__ import annotations

from tests.client.conftest import place as place
