import numpy as np
import numpy.typing as npt

SOURCE: int

def split(
    data: npt.NDArray[np.uint8],
    starts: npt.NDArray[np.int64],
    lengths: npt.NDArray[np.int64],
    wanted: tuple[bytes, ...],
    first_pairs: npt.NDArray[np.int32],
    name_offsets: npt.NDArray[np.int32],
    names: npt.NDArray[np.uint8],
    value_offsets: npt.NDArray[np.int32],
    values: npt.NDArray[np.uint8],
    places: npt.NDArray[np.int32],
) -> int | None: ...
