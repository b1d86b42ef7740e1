# SPDX-License-Identifier: Apache-2.0
"""What differs between the Transformers releases that are supported (5.17 and later), found out by looking."""
from transformers.cache_utils import DYNAMIC_LAYER_TYPE_MAPPING, get_layer_types_and_kwargs


# Said by torch.compile(fullgraph=True); without it the graph breaks there, and the rest is compiled.
NO_GRAPH = ("a TerseCache grows in pages of its own memory, whose addresses no graph can hold: compile without "
            "fullgraph=True (the graph breaks at the cache's update and attention), or not at all")


def layer_plan(config):
    """[(layer type, keyword arguments of its stock cache layer)] of a decoder's config.

    Later releases give the arguments by layer, earlier ones once for all.
    """
    types, arguments = get_layer_types_and_kwargs(config)
    if isinstance(arguments, dict):
        arguments = [arguments] * len(types)
    return list(zip(types, arguments))


def stock_layer(kind, arguments):
    """The dynamic cache layer that Transformers itself uses for this type."""
    if kind not in DYNAMIC_LAYER_TYPE_MAPPING:
        raise ValueError(f"layer type '{kind}' is not known to this Transformers release")
    return DYNAMIC_LAYER_TYPE_MAPPING[kind](**arguments)


def decoder_config(config):
    return config.get_text_config(decoder=True)


def uses_latent_attention(config):
    """MLA: the cache would hold latents, which each layer expands."""
    return getattr(config, "kv_lora_rank", None) is not None
