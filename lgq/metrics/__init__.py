"""Metrics of reconstructions, codebooks and generated images: one per file, a formula and its accumulator.

    reconstruction                               PSNR, SSIM and l1 of pixels
    fid, kid, precision_recall, inception_score  from Inception features (features, reference)
    code_usage, geometry                         utilization, perplexity, co-occurrence, mutual information
    likelihood                                   tokens under a generator, beside their entropies
    quality, codebook_study                      all metrics of a tokenizer; what its codes encode, with plots
    generation                                   all metrics of a generator's images
    metric_networks                              LPIPS and Inception

Accumulators have `empty`, `update` per batch and `over_ranks` for all processes. To add a metric, write its
file and let `TokenizerQuality` (quality.py) or `_SampleMetrics` (generation.py) collect it. Every record then
holds it by name; `lgq/cli/evaluate.py` lists the columns that the command prints.
"""
