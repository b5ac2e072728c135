import pytest

pytest.register_assert_rewrite("tests.interop.grpc.scenarios")
