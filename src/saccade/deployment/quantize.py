"""Smaller versions of an exported model: half precision, and weights of 8 bits."""

import copy
import logging
from pathlib import Path

import torch
from torch import nn

from ..data.spec import InputSpec
from .bundle import KEY, Bundle, ExportError
from .graph import WithPreprocessing, quietly, shortened


def halved(model: nn.Module, spec: InputSpec) -> WithPreprocessing:
    """Return a copy of a model in float16, which takes the same bytes and gives float32 answers."""
    return WithPreprocessing(copy.deepcopy(model), spec, dtype=torch.float16).eval()


def write_int8(source: Path, path: Path, bundle: Bundle) -> None:
    """Write an ONNX file anew with the weights of its matrix products as 8-bit integers.

    Activations stay float32 in the graph and are scaled to 8 bits picture by picture as it runs ("dynamic"), so no
    calibration is needed. Convolutions are left as they are: onnxruntime has no fast 8-bit one of this kind.

    Args:
        source: the float32 file.
        path: of the new one.
        bundle: the new one's description.
    """
    import onnx
    from onnxruntime.quantization import QuantType, quantize_dynamic

    logger = logging.getLogger()
    level = logger.level
    try:
        logger.setLevel(logging.ERROR)  # it logs advice to the root
        with quietly():
            model = onnx.load_model(str(source))
            # Types of inner values are left out: the quantizer reads stale ones as promises.
            del model.graph.value_info[:]
            quantize_dynamic(model, str(path), op_types_to_quantize=["MatMul"], weight_type=QuantType.QInt8)
            made = onnx.load_model(str(path))
    except Exception as error:
        raise ExportError(f"{bundle.name} cannot be written with 8-bit weights: {shortened(error)}") from error
    finally:
        logger.setLevel(level)
    kept = [entry for entry in made.metadata_props if entry.key != KEY]
    del made.metadata_props[:]
    made.metadata_props.extend([*kept, onnx.StringStringEntryProto(key=KEY, value=bundle.to_json())])
    onnx.save_model(made, str(path))
