"""Soft assignment and nearest-code search as Triton kernels.   n = vectors, k = codes, c = channels.

A score is r_nk = <x_n, y_k> + bias_k, a log-weight w_nk = max((r_nk - peak_n) / tau, FLOOR), and a weight
p_nk = exp(w_nk - log_sum_n). No score is ever written to memory:

    search     each vector over all codes   1 GEMM    best score and its code
    scan       each vector over all codes   1 GEMM    the same, and sums of e, e^2 and e w, where e = exp(w)
    usage      each code over all vectors   1 GEMM    sum of p
    to_z       each vector over all codes   4 GEMMs   sums of p dp, p dp y and p y
    to_codes   each code over all vectors   4 GEMMs   sums of ds x / tau + p g, and of ds

Programs own their rows, so nothing is atomic. The second axis of the grid splits the streamed axis into
chunks; each writes its own slice, and the caller adds them up.

Operands come as planes of shape (plane, row, C) with channels padded by zeros. With SPLIT, three bfloat16
planes add up to a float32 value, because `tl.dot` on float32 itself spills registers: scores take the six
largest of the nine products, gradients three of the four of two planes. Without SPLIT there is one plane.
"""

import triton
import triton.language as tl

_PER_LAUNCH = ["n", "k", "chunk"]
"""Sizes that Triton must not compile into a kernel: one variant serves all, the one that tests compile."""


@triton.jit
def _load(at, size, mask, SPLIT: tl.constexpr):
    first = tl.load(at, mask=mask, other=0.0)
    if SPLIT:
        second = tl.load(at + size, mask=mask, other=0.0)
        third = tl.load(at + 2 * size, mask=mask, other=0.0)
        return first, second, third
    else:
        return first, first, first


@triton.jit
def _load_two(at, size, mask, SPLIT: tl.constexpr):
    first = tl.load(at, mask=mask, other=0.0)
    if SPLIT:
        second = tl.load(at + size, mask=mask, other=0.0)
        return first, second
    else:
        return first, first


@triton.jit
def _six_products(a1, a2, a3, b1, b2, b3, TYPE: tl.constexpr, SPLIT: tl.constexpr):
    """Compute a b to 24 bits; small terms first, because tensor cores truncate what they add up."""
    if SPLIT:
        total = tl.dot(a3, b1)
        total = tl.dot(a1, b3, total)
        total = tl.dot(a2, b2, total)
        total = tl.dot(a2, b1, total)
        total = tl.dot(a1, b2, total)
        return tl.dot(a1, b1, total)
    else:
        return tl.dot(a1, b1, input_precision="ieee", out_dtype=TYPE)


@triton.jit
def _three_products(a1, a2, b1, b2, TYPE: tl.constexpr, SPLIT: tl.constexpr):
    """Compute a b to 16 bits."""
    if SPLIT:
        total = tl.dot(a2, b1)
        total = tl.dot(a1, b2, total)
        return tl.dot(a1, b1, total)
    else:
        return tl.dot(a1, b1, input_precision="ieee", out_dtype=TYPE)


@triton.jit
def _add_weighted(total, weights, b1, b2, TYPE: tl.constexpr, SPLIT: tl.constexpr):
    """Add weights b to total, to 16 bits; the weights were computed here, so they have no planes yet."""
    if SPLIT:
        # Rounded to bfloat16, and then in the type of the operands, which is another in the interpreter.
        high = weights.to(tl.bfloat16).to(b1.dtype)
        low = (weights - high.to(TYPE)).to(tl.bfloat16).to(b1.dtype)
        total = tl.dot(low, b1, total)
        total = tl.dot(high, b2, total)
        return tl.dot(high, b1, total)
    else:
        return tl.dot(weights, b1, total, input_precision="ieee", out_dtype=TYPE)


@triton.jit(do_not_specialize=_PER_LAUNCH)
def search(
    x, y, bias, peaks, indices, n, k, chunk,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, C: tl.constexpr, TYPE: tl.constexpr,
    SPLIT: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    part = tl.program_id(1)
    channel = tl.arange(0, C)
    x1, x2, x3 = _load(x + row[:, None] * C + channel[None, :], n * C, (row < n)[:, None], SPLIT)
    peak = tl.full([ROWS], -float("inf"), TYPE)
    index = tl.full([ROWS], 0, tl.int32)
    for first in range(part * chunk, tl.minimum(part * chunk + chunk, k), COLUMNS):
        column = first + tl.arange(0, COLUMNS)
        y1, y2, y3 = _load(y + column[None, :] * C + channel[:, None], k * C, (column < k)[None, :], SPLIT)
        r = _six_products(x1, x2, x3, y1, y2, y3, TYPE, SPLIT)
        r += tl.load(bias + column, mask=column < k, other=-float("inf"))[None, :]
        best, where = tl.max(r, 1, return_indices=True)
        index = tl.where(best > peak, first + where, index)
        peak = tl.maximum(peak, best)
    tl.store(peaks + part * n + row, peak, mask=row < n)
    tl.store(indices + part * n + row, index, mask=row < n)


@triton.jit(do_not_specialize=_PER_LAUNCH)
def scan(
    x, y, bias, inverse_tau, peaks, indices, sums, squares, products, n, k, chunk,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, C: tl.constexpr, TYPE: tl.constexpr, FLOOR: tl.constexpr,
    SPLIT: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    part = tl.program_id(1)
    channel = tl.arange(0, C)
    inverse = tl.load(inverse_tau)
    x1, x2, x3 = _load(x + row[:, None] * C + channel[None, :], n * C, (row < n)[:, None], SPLIT)
    peak = tl.full([ROWS], -float("inf"), TYPE)
    index = tl.full([ROWS], 0, tl.int32)
    sum_e = tl.full([ROWS], 0, TYPE)
    sum_ee = tl.full([ROWS], 0, TYPE)
    sum_ew = tl.full([ROWS], 0, TYPE)
    for first in range(part * chunk, tl.minimum(part * chunk + chunk, k), COLUMNS):
        column = first + tl.arange(0, COLUMNS)
        y1, y2, y3 = _load(y + column[None, :] * C + channel[:, None], k * C, (column < k)[None, :], SPLIT)
        r = _six_products(x1, x2, x3, y1, y2, y3, TYPE, SPLIT)
        r += tl.load(bias + column, mask=column < k, other=-float("inf"))[None, :]
        best, where = tl.max(r, 1, return_indices=True)
        index = tl.where(best > peak, first + where, index)
        new_peak = tl.maximum(peak, best)
        # Sums so far are relative to the old peak.
        shift = tl.maximum((peak - new_peak) * inverse, FLOOR)
        factor = tl.exp(shift)
        w = tl.maximum((r - new_peak[:, None]) * inverse, FLOOR)
        e = tl.exp(w)
        sum_ew = (sum_ew + shift * sum_e) * factor + tl.sum(e * w, 1)
        sum_e = sum_e * factor + tl.sum(e, 1)
        sum_ee = sum_ee * factor * factor + tl.sum(e * e, 1)
        peak = new_peak
    at = part * n + row
    tl.store(peaks + at, peak, mask=row < n)
    tl.store(indices + at, index, mask=row < n)
    tl.store(sums + at, sum_e, mask=row < n)
    tl.store(squares + at, sum_ee, mask=row < n)
    tl.store(products + at, sum_ew, mask=row < n)


@triton.jit(do_not_specialize=_PER_LAUNCH)
def usage(
    x, y, bias, inverse_tau, peak, log_sum, indices, totals, n, k, chunk,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, C: tl.constexpr, TYPE: tl.constexpr, FLOOR: tl.constexpr,
    SPLIT: tl.constexpr,
):  # fmt: skip
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    part = tl.program_id(1)
    channel = tl.arange(0, C)
    inverse = tl.load(inverse_tau)
    y1, y2, y3 = _load(y + column[:, None] * C + channel[None, :], k * C, (column < k)[:, None], SPLIT)
    y_bias = tl.load(bias + column, mask=column < k, other=-float("inf"))
    total = tl.full([COLUMNS], 0, TYPE)
    for first in range(part * chunk, tl.minimum(part * chunk + chunk, n), ROWS):
        row = first + tl.arange(0, ROWS)
        x1, x2, x3 = _load(x + row[None, :] * C + channel[:, None], n * C, (row < n)[None, :], SPLIT)
        r = _six_products(y1, y2, y3, x1, x2, x3, TYPE, SPLIT)
        row_peak = tl.load(peak + row, mask=row < n, other=0.0)
        # Infinity gives rows beyond the vectors no weight.
        row_log_sum = tl.load(log_sum + row, mask=row < n, other=float("inf"))
        w = tl.maximum((r + y_bias[:, None] - row_peak[None, :]) * inverse, FLOOR)
        index = tl.load(indices + row, mask=row < n, other=0).to(tl.int32)
        is_best = column[:, None] == index[None, :]
        # The weight of the best code is 1 by definition: products of swapped operands round otherwise.
        p = tl.where(is_best, tl.exp(-row_log_sum)[None, :], tl.exp(w - row_log_sum[None, :]))
        total += tl.sum(p, 1)
    tl.store(totals + part * k + column, total, mask=column < k)


@triton.jit(do_not_specialize=_PER_LAUNCH)
def to_z(
    x, y, g, bias, grad_usage, inverse_tau, peak, log_sum, grad_purity, grad_entropy, indices, reference,
    inners, weighted, means, n, k, chunk,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, C: tl.constexpr, TYPE: tl.constexpr, FLOOR: tl.constexpr,
    OUTPUT: tl.constexpr, USAGE: tl.constexpr, PURITY: tl.constexpr, ENTROPY: tl.constexpr,
    SPLIT: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    part = tl.program_id(1)
    channel = tl.arange(0, C)
    inverse = tl.load(inverse_tau)
    at_x = row[:, None] * C + channel[None, :]
    x1, x2, x3 = _load(x + at_x, n * C, (row < n)[:, None], SPLIT)
    if OUTPUT:
        g1, g2 = _load_two(g + at_x, n * C, (row < n)[:, None], SPLIT)
    if PURITY:
        twice = 2 * tl.load(grad_purity + row, mask=row < n, other=0.0)
    if ENTROPY:
        row_grad_entropy = tl.load(grad_entropy + row, mask=row < n, other=0.0)
    row_peak = tl.load(peak + row, mask=row < n, other=0.0)
    row_log_sum = tl.load(log_sum + row, mask=row < n, other=float("inf"))
    row_reference = tl.load(reference + row, mask=row < n, other=0.0)
    index = tl.load(indices + row, mask=row < n, other=0).to(tl.int32)
    inner = tl.full([ROWS], 0, TYPE)
    dp_y = tl.full([ROWS, C], 0, TYPE)
    p_y = tl.full([ROWS, C], 0, TYPE)
    for first in range(part * chunk, tl.minimum(part * chunk + chunk, k), COLUMNS):
        column = first + tl.arange(0, COLUMNS)
        y1, y2, y3 = _load(y + column[:, None] * C + channel[None, :], k * C, (column < k)[:, None], SPLIT)
        y1t, y2t, y3t = tl.trans(y1), tl.trans(y2), tl.trans(y3)
        r = _six_products(x1, x2, x3, y1t, y2t, y3t, TYPE, SPLIT)
        r += tl.load(bias + column, mask=column < k, other=-float("inf"))[None, :]
        w = tl.maximum((r - row_peak[:, None]) * inverse, FLOOR)
        p = tl.exp(w - row_log_sum[:, None])
        dp = -row_reference[:, None]
        if OUTPUT:
            dp += _three_products(g1, g2, y1t, y2t, TYPE, SPLIT)
        if USAGE:
            dp += tl.load(grad_usage + column, mask=column < k, other=0.0)[None, :]
        if PURITY:
            dp += twice[:, None] * p
        if ENTROPY:
            dp -= row_grad_entropy[:, None] * w
        # 0 for the best code, from which dp is counted, and for padding, whose weight is exp(FLOOR).
        counts = (column[None, :] != index[:, None]) & (column < k)[None, :]
        weighted_dp = tl.where(counts, p * dp, 0.0)
        inner += tl.sum(weighted_dp, 1)
        dp_y = _add_weighted(dp_y, weighted_dp, y1, y2, TYPE, SPLIT)
        p_y = _add_weighted(p_y, p, y1, y2, TYPE, SPLIT)
    at = (part * n + row).to(tl.int64)
    tl.store(inners + at, inner, mask=row < n)
    tl.store(weighted + at[:, None] * C + channel[None, :], dp_y, mask=(row < n)[:, None])
    tl.store(means + at[:, None] * C + channel[None, :], p_y, mask=(row < n)[:, None])


@triton.jit(do_not_specialize=_PER_LAUNCH)
def to_codes(
    x, y, g, bias, grad_usage, inverse_tau, peak, log_sum, grad_purity, grad_entropy, indices, reference,
    inner, dcodes, dbias, n, k, chunk,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, C: tl.constexpr, TYPE: tl.constexpr, FLOOR: tl.constexpr,
    OUTPUT: tl.constexpr, USAGE: tl.constexpr, PURITY: tl.constexpr, ENTROPY: tl.constexpr,
    SOFT: tl.constexpr, SPLIT: tl.constexpr,
):  # fmt: skip
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    part = tl.program_id(1)
    channel = tl.arange(0, C)
    inverse = tl.load(inverse_tau)
    y1, y2, y3 = _load(y + column[:, None] * C + channel[None, :], k * C, (column < k)[:, None], SPLIT)
    y_bias = tl.load(bias + column, mask=column < k, other=-float("inf"))
    if USAGE:
        y_grad_usage = tl.load(grad_usage + column, mask=column < k, other=0.0)
    dy = tl.full([COLUMNS, C], 0, TYPE)
    db = tl.full([COLUMNS], 0, TYPE)
    for first in range(part * chunk, tl.minimum(part * chunk + chunk, n), ROWS):
        row = first + tl.arange(0, ROWS)
        at_x = row[:, None] * C + channel[None, :]
        x1, x2, x3 = _load(x + at_x, n * C, (row < n)[:, None], SPLIT)
        x1t, x2t, x3t = tl.trans(x1), tl.trans(x2), tl.trans(x3)
        r = _six_products(y1, y2, y3, x1t, x2t, x3t, TYPE, SPLIT)
        row_peak = tl.load(peak + row, mask=row < n, other=0.0)
        row_log_sum = tl.load(log_sum + row, mask=row < n, other=float("inf"))
        row_reference = tl.load(reference + row, mask=row < n, other=0.0)
        row_inner = tl.load(inner + row, mask=row < n, other=0.0)
        index = tl.load(indices + row, mask=row < n, other=0).to(tl.int32)
        w = tl.maximum((r + y_bias[:, None] - row_peak[None, :]) * inverse, FLOOR)
        # As in `usage`.
        is_best = column[:, None] == index[None, :]
        p = tl.where(is_best, tl.exp(-row_log_sum)[None, :], tl.exp(w - row_log_sum[None, :]))
        dp = -row_reference[None, :]
        if OUTPUT:
            g1, g2 = _load_two(g + at_x, n * C, (row < n)[:, None], SPLIT)
            dp += _three_products(y1, y2, tl.trans(g1), tl.trans(g2), TYPE, SPLIT)
        if USAGE:
            dp += y_grad_usage[:, None]
        if PURITY:
            dp += 2 * tl.load(grad_purity + row, mask=row < n, other=0.0)[None, :] * p
        if ENTROPY:
            dp -= tl.load(grad_entropy + row, mask=row < n, other=0.0)[None, :] * w
        ds = p * (tl.where(is_best, 0.0, dp) - row_inner[None, :])
        db += tl.sum(ds, 1)
        dy = _add_weighted(dy, ds * inverse, x1, x2, TYPE, SPLIT)
        if OUTPUT and SOFT:
            dy = _add_weighted(dy, p, g1, g2, TYPE, SPLIT)
    at = (part * k + column).to(tl.int64)
    tl.store(dbias + at, db, mask=column < k)
    tl.store(dcodes + at[:, None] * C + channel[None, :], dy, mask=(column < k)[:, None])
