"""Nets of 2014 to 2024 from torchvision, timm and transformers, with fresh weights. The extra `test-modern` installs the three."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import nn

IMAGE = (1, 3, 224, 224)


class Task(NamedTuple):
    """A net and an input. `dynamo`: the exporter that can write the net, or writes it better."""

    net: nn.Module
    x: torch.Tensor
    dynamo: bool = False


class Part(nn.Module):
    """A net whose output is one part of the output of `net`."""

    def __init__(self, net: nn.Module, take: Callable[[Any], torch.Tensor], **options: Any) -> None:
        super().__init__()
        self.net, self.take, self.options = net, take, options

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.take(self.net(x, **self.options))


class Crnn(nn.Module):
    """Convolutions, then a bidirectional LSTM of two layers over the columns of the image."""

    def __init__(self) -> None:
        super().__init__()
        self.c = nn.Sequential(
            nn.Conv2d(1, 16, 3, 1, 1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 32, 3, 1, 1), nn.ReLU(), nn.MaxPool2d((2, 1)),
            nn.AdaptiveAvgPool2d((1, None)),
        )  # fmt: skip
        self.l = nn.LSTM(32, 24, num_layers=2, bidirectional=True)
        self.f = nn.Linear(48, 37)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.f(self.l(self.c(x).squeeze(2).permute(2, 0, 1))[0])


class Gru(nn.Module):
    """A GRU of two layers and a classifier of its last step."""

    def __init__(self) -> None:
        super().__init__()
        self.l = nn.GRU(20, 24, num_layers=2, batch_first=True)
        self.f = nn.Linear(24, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.f(self.l(x)[0][:, -1])


def _torchvision(name: str) -> Task:
    import torchvision

    return Task(getattr(torchvision.models, name)(weights=None), torch.randn(IMAGE))


def _timm(name: str) -> Task:
    import timm

    net = timm.create_model(name, pretrained=False)
    return Task(net, torch.randn(1, *net.default_cfg["input_size"]))


def _segmentation(name: str) -> Task:
    import torchvision

    net = getattr(torchvision.models.segmentation, name)(weights=None, weights_backbone=None)
    return Task(Part(net, lambda out: out["out"]), torch.randn(IMAGE))


def _video(name: str) -> Task:
    import torchvision

    return Task(getattr(torchvision.models.video, name)(weights=None), torch.randn(1, 3, 8, 56, 56))


def _segformer(name: str) -> Task:
    import transformers

    net = transformers.SegformerForSemanticSegmentation(transformers.SegformerConfig())
    return Task(Part(net, lambda out: out.logits), torch.randn(IMAGE))


def _language(name: str) -> Task:
    import transformers

    if name == "gpt2":
        net: Any = transformers.GPT2LMHeadModel(transformers.GPT2Config(n_layer=2, n_embd=64, n_head=4, vocab_size=100, n_positions=64))
    else:
        net = transformers.LlamaForCausalLM(transformers.LlamaConfig(
            num_hidden_layers=2, hidden_size=64, intermediate_size=128, num_attention_heads=4, num_key_value_heads=2, vocab_size=100,
            max_position_embeddings=64,
        ))  # fmt: skip
    return Task(Part(net, lambda out: out.logits, use_cache=False), torch.randint(0, 100, (1, 16)), dynamo=True)


TORCHVISION = ("resnet50", "mobilenet_v3_small", "efficientnet_b0", "efficientnet_v2_s", "regnet_x_400mf", "convnext_tiny", "vit_b_16", "swin_t", "maxvit_t",
               "densenet121")  # fmt: skip
TIMM = (
    "vit_tiny_patch16_224", "mobilenetv3_large_100", "mobilenetv4_conv_small", "efficientnet_lite0", "deit_tiny_patch16_224", "repvgg_a0", "ghostnet_100",
    "hrnet_w18", "res2net50_26w_4s", "tf_efficientnetv2_b0", "mobileone_s0", "fastvit_t8", "efficientformer_l1", "edgenext_small", "mobilevit_s",
    "pvt_v2_b0", "poolformer_s12", "eva02_tiny_patch14_224", "convnextv2_atto", "nfnet_l0", "botnet26t_256", "levit_128", "resnest14d",
    "inception_resnet_v2", "dla34", "cspdarknet53", "xception", "mixer_s16_224", "beit_base_patch16_224", "swinv2_tiny_window8_256", "efficientvit_b0",
    "repvit_m1",
)  # fmt: skip
BY_DYNAMO = {"eva02_tiny_patch14_224"}  # TorchScript's exporter fails: is_causal is a tensor

NETS: dict[str, Callable[[], Task]] = {
    **{name: lambda name=name: _torchvision(name) for name in TORCHVISION},
    **{name: lambda name=name: _timm(name)._replace(dynamo=name in BY_DYNAMO) for name in TIMM},
    "fcn_resnet50": lambda: _segmentation("fcn_resnet50"),
    "deeplabv3_resnet50": lambda: _segmentation("deeplabv3_resnet50"),
    "lraspp": lambda: _segmentation("lraspp_mobilenet_v3_large"),
    "segformer": lambda: _segformer("segformer"),
    "gpt2": lambda: _language("gpt2"),
    "llama": lambda: _language("llama"),
    "crnn_lstm": lambda: Task(Crnn(), torch.randn(1, 1, 32, 64)),
    "gru": lambda: Task(Gru(), torch.randn(1, 12, 20)),
    "r3d_18": lambda: _video("r3d_18"),
}
