"""Compares logits that Python computed with those of cifar_mpi_eval --predictions."""
import h5py
import numpy as np


def compare(logits, predictions, fan_ins):
    """Fails unless `logits` equal those of the file `predictions` up to rounding, and the classes up to ties.

    A sum of k products in fp32 is off by about sqrt(k) * 2^-24 of its size when rounding errors are independent, and the layers
    after it pass that on as they do the sum; so the errors of the layers, with `fan_ins` products each, add up. The factor 4
    covers that both sides round, and the steps between the sums.
    """
    bound = 4 * 2.0**-24 * sum(np.sqrt(k) for k in fan_ins) * np.abs(logits).max()
    with h5py.File(predictions) as file:
        wanted, classes = file["logits"][:], file["predictions"][:]
    distance = np.abs(logits - wanted).max()
    assert distance <= bound, f"logits differ by {distance}, more than {bound}"
    chosen = np.take_along_axis(logits, classes[:, None].astype(int), 1)[:, 0]
    ties = logits.max(1) - chosen
    assert ties.max() <= 2 * bound, f"another class is larger by {ties.max()}"
    print(f"logits agree: {distance:.1e} of {bound:.1e}, {(ties > 0).sum()} ties")
