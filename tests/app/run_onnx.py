"""run_onnx.py MODEL.onnx DATASET.h5 PREDICTIONS.h5: evaluates an ONNX model on the test split with the formulas of the ONNX
operators, and compares all logits with those that cifar_mpi_eval has written.

Prints the mean cross-entropy.
"""
import math
import sys

import h5py
import numpy as np
import onnx
from compare_logits import compare
from numpy.lib.stride_tricks import sliding_window_view
from onnx import numpy_helper


def windows(x, kernel, strides, pads, fill):
    top, left, bottom, right = pads
    x = np.pad(x, ((0, 0), (0, 0), (top, bottom), (left, right)), constant_values=fill)
    return sliding_window_view(x, kernel, (2, 3))[:, :, :: strides[0], :: strides[1]]


def conv(x, w, b=None, kernel_shape=None, strides=(1, 1), pads=(0, 0, 0, 0)):
    y = np.einsum("nchwij,ocij->nohw", windows(x, kernel_shape, strides, pads, 0), w, optimize=True)
    return y if b is None else y + b[:, None, None]


def local_response_norm(x, size, alpha, beta, bias):
    squares = np.pad(x * x, ((0, 0), (size // 2, size // 2), (0, 0), (0, 0)))
    return x / (bias + alpha / size * sliding_window_view(squares, size, 1).sum(-1)) ** beta


def batch_norm(x, scale, b, mean, variance, epsilon):
    scale, b, mean, variance = (v[:, None, None] for v in (scale, b, mean, variance))
    return scale * (x - mean) / np.sqrt(variance + epsilon) + b


def take(x, begin, end, axes, steps=None):
    index = [slice(None)] * x.ndim
    for i, axis in enumerate(axes):
        index[axis] = slice(begin[i], end[i], steps[i] if steps is not None else None)
    return x[tuple(index)]


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def softmax(x):
    e = np.exp(x - x.max(1, keepdims=True))
    return e / e.sum(1, keepdims=True)


OPERATORS = {
    "Cast": lambda x, to: x.astype(np.float32),
    "Slice": take,
    "ReduceMean": lambda x, axes: x.mean(tuple(axes), keepdims=True),
    "Sub": np.subtract,
    "Mul": np.multiply,
    "Sqrt": np.sqrt,
    "Max": np.maximum,
    "Div": np.divide,
    "Transpose": lambda x, perm: x.transpose(perm),
    "Conv": conv,
    "Sigmoid": sigmoid,
    "Erf": lambda x: np.vectorize(math.erf, otypes=[np.float32])(x),
    "Relu": lambda x: np.maximum(x, 0),
    "MaxPool": lambda x, kernel_shape, strides, pads: windows(x, kernel_shape, strides, pads, -np.inf).max((-2, -1)),
    "LRN": local_response_norm,
    "BatchNormalization": batch_norm,
    "GlobalAveragePool": lambda x: x.mean((2, 3), keepdims=True),
    "Pad": lambda x, pads: np.pad(x, list(zip(pads[: x.ndim], pads[x.ndim :]))),
    "Add": np.add,
    "Flatten": lambda x: x.reshape(len(x), -1),
    "Softmax": softmax,
}

model = onnx.load(sys.argv[1])
onnx.checker.check_model(model, full_check=True)
constants = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}
with h5py.File(sys.argv[2]) as file:
    images, labels = file["test/images"][:], file["test/labels"][:]
values = {"images": images, **constants}
for node in model.graph.node:
    attributes = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
    values[node.output[0]] = OPERATORS[node.op_type](*(values[name] for name in node.input), **attributes)
compare(values["logits"], sys.argv[3], [w[0].size for w in constants.values() if w.ndim == 4])
cross_entropy = -np.log(values["probabilities"][np.arange(len(labels)), labels]).mean()
print(f"cross-entropy {cross_entropy:.4f}")
