"""What takes the place of options and methods of vector-quantize-pytorch, which newcomers try first."""

OPTIONS = {
    "accept_image_fmap": "channel_dim=1",
    "channel_first": "channel_dim=1",
    "channel_last": "channel_dim",
    "codebook_size": "Residual.of(make, stages) or Grouped.of(make, groups)",
    "ema_update": 'learning="ema"',
    "entropy_loss_weight": "entropy_weight",
    "freeze_codebook": "q.freeze(codes_only=True)",
    "heads": "Grouped.of",
    "kmeans_init": 'init="kmeans"',
    "learnable_codebook": 'learning="gradient"',
    "num_codebooks": "Grouped.of",
    "num_quantizers": "Residual.of",
    "orthogonal_reg_weight": "restart_below",
    "rotation_trick": 'gradient="rotation"',
    "sample_codebook_temp": "sample_temperature",
    "scales": "sizes",
    "stochastic_sample_codes": "sample_temperature",
    "threshold_ema_dead_code": "restart_below",
    "use_cosine_sim": 'score="cosine"',
}
"""Options of quantizers."""
METHODS = {
    "codebooks": "the codebook of each quantizer in q.parts",
    "codes_to_indices": "encode(latents)",
    "expire_codes_": "the option restart_below",
    "get_codes_from_indices": "decode(indices), and stage_codes(indices) of Residual",
    "get_output_from_indices": "decode(indices)",
    "update_in_place_optimizer": "an optimizer of q.parameters()",
}
"""Methods and properties of quantizers."""
