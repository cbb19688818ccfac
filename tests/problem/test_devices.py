"""A device is found by the names that drivers, Slurm and clouds give it; one that the catalogue lacks stays unknown."""

import itertools

import pytest

from oppa import catalog
from oppa.cost.hardware import hardware_of
from oppa.errors import JobError
from oppa.problem.cluster import Cluster
from oppa.problem.devices import CATALOG, GENERIC, devices, identify, memory_of, nearest, sharing, unknown_device

GB = 10**9
NAMES = {
    "H100": [
        "NVIDIA H100 80GB HBM3",  # nvidia-smi, torch.cuda.get_device_name
        "H100 80GB HBM3",
        "GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-5a2bd7a4-1b1f-7c5f-2d3e-0a9b8c7d6e5f)",  # nvidia-smi -L
        "NVIDIA-H100-80GB-HBM3",  # nvidia.com/gpu.product
        "nvidia_h100_80gb_hbm3",  # Slurm, autodetected
        "gpu:nvidia_h100_80gb_hbm3:4",
        "gpu:h100:8",
        "gres/gpu:h100=1",
        "h100",
        "gpu_8x_h100_sxm5",  # Lambda
        "H100_SXM",  # vast.ai
        "nvidia-h100-80gb",  # GKE
        "nvidia-h100-mega-80gb",
        "H100-MEGA",
        "H100:8",  # SkyPilot
        "p5.48xlarge",
        "Standard_ND96isr_H100_v5",
        "a3-highgpu-8g",
        "BM.GPU.H100.8",
    ],
    "H100-PCIe": ["NVIDIA H100 PCIe", "gpu:nvidia_h100_pcie:3(S:0-1)", "NVIDIA-H100-PCIe", "H100_PCIE", "gpu_1x_h100_pcie"],
    "H200": ["NVIDIA H200", "nvidia_h200", "gpu:nvidia_h200:8(S:0-1)", "gpu:h200:4", "nvidia-h200-141gb", "p5en.48xlarge", "H200-SXM"],
    "A100-80GB": [
        "NVIDIA A100-SXM4-80GB",
        "A100-SXM4-80GB",  # drivers before 460
        "NVIDIA-A100-SXM4-80GB",
        "gpu:nvidia_a100-sxm4-80gb:4",
        "gres:gpu:A100-SXM4-80GB:8",
        "gpu:a100-sxm4-80gb:1",
        "nvidia-a100-80gb",
        "A100-80GB:4",
        "A100 80 GB",
        "1x A100 (80 GB SXM4)",  # Lambda
        "gpu_8x_a100_80gb_sxm4",
        "a2-ultragpu-8g",
        "p4de.24xlarge",
        "Standard_ND96amsr_A100_v4",
        "BM.GPU.A100-v2.8",
    ],
    "A100-40GB": [
        "NVIDIA A100-SXM4-40GB",
        "A100-SXM4-40GB",
        "gpu:nvidia_a100-sxm4-40gb:2(IDX:0-1)",
        "nvidia-tesla-a100",
        "A100-40GB",
        "a2-highgpu-1g",
        "p4d.24xlarge",
        "Standard_ND96asr_v4",
    ],
    "A100-PCIe-80GB": ["NVIDIA A100 80GB PCIe", "gpu:nvidia_a100_80gb_pcie:4(S:0)", "NVIDIA-A100-80GB-PCIe", "Standard_NC24ads_A100_v4"],
    "A100-PCIe-40GB": ["NVIDIA A100-PCIE-40GB", "gpu:nvidia_a100-pcie-40gb:3", "gpu:a100-pcie-40gb:1"],
    "T4": ["Tesla T4", "Tesla-T4", "NVIDIA T4", "gpu:tesla_t4:1(IDX:0)", "gpu:t4:2", "nvidia-tesla-t4", "T4:4", "g4dn.12xlarge"],
    "A5000": ["NVIDIA RTX A5000", "RTX A5000", "gpu:nvidia_rtx_a5000:2", "RTX_A5000", "gpu:a5000:1"],
    "RTX3080": ["NVIDIA GeForce RTX 3080", "GeForce RTX 3080", "GRES/gpu:nvidia_geforce_rtx_3080=3", "gpu:rtx3080:2", "RTX_3080"],
    "MI210": ["AMD Instinct MI210", "AMD INSTINCT MI210", "gpu:mi210:8", "gres/gpu:mi210=8", "amd_instinct_mi210"],
    "B200": [
        "NVIDIA B200",
        "NVIDIA-B200",
        "gpu:nvidia_b200:8",
        "gpu:b200:8",
        "gpu_8x_b200_sxm6",
        "nvidia-b200",
        "a4-highgpu-8g",
        "p6-b200.48xlarge",
    ],
    "B300": ["NVIDIA B300 SXM6 AC", "gpu:nvidia_b300_sxm6_ac:8", "gpu:b300:8", "B300_SXM6", "p6-b300.48xlarge", "BM.GPU.B300.8"],
    "GB200": [
        "NVIDIA GB200",
        "gpu:gb200:4",
        "GB200 NVL72",
        "nvidia-gb200",
        "p6e-gb200.36xlarge",
        "Standard_ND128isr_NDR_GB200_v6",
        "BM.GPU.GB200.4",
    ],
    "GB200-NVL4": ["NVIDIA GB200 NVL4", "GB200_NVL4"],
    "GB300": ["NVIDIA GB300", "gpu:nvidia_gb300:4", "GB300 NVL72", "Standard_ND128isr_GB300_v6", "BM.GPU.GB300.4"],
    "H100-NVL": ["NVIDIA H100 NVL", "NVIDIA-H100-NVL", "gpu:nvidia_h100_nvl:2(S:0-1)", "H100_NVL", "Standard_NC40ads_H100_v5"],
    "H800": ["NVIDIA H800", "gpu:nvidia_h800:8", "H800:8", "NVIDIA H800 80GB HBM3"],
    "H20": ["NVIDIA H20", "gpu:nvidia_h20:8", "H20 96GB", "gpu:h20:8"],
    "GH200": ["NVIDIA GH200 480GB", "NVIDIA GH200 120GB", "gpu:nvidia_gh200_120gb:4", "gpu:gh200:4", "gpu_1x_gh200", "NVIDIA-GH200-480GB"],
    "GH200-144GB": ["NVIDIA GH200 144G HBM3e", "GH200 144 GB"],
    "A800-80GB": ["NVIDIA A800-SXM4-80GB", "gpu:nvidia_a800-sxm4-80gb:8", "A800-80GB"],
    "A800-40GB": ["NVIDIA A800-SXM4-40GB"],
    "A800-PCIe-80GB": ["NVIDIA A800 80GB PCIe", "gpu:nvidia_a800_80gb_pcie:4(S:0)"],
    "L40S": ["NVIDIA L40S", "gpu:nvidia_l40s:4(S:0-1)", "gpu:l40s:8", "L40S:4", "g6e.48xlarge", "BM.GPU.L40S.4"],
    "L4": ["NVIDIA L4", "nvidia-l4", "gpu:nvidia_l4:1", "gpu:l4:8", "L4:4", "g2-standard-96", "g6.48xlarge"],
    "A10G": ["NVIDIA A10G", "gpu:a10g:8", "g5.48xlarge"],
    "RTX6000-Ada": ["NVIDIA RTX 6000 Ada Generation", "gpu:nvidia_rtx_6000_ada_generation:4"],
    "A10": ["NVIDIA A10", "gpu:nvidia_a10:2", "gpu:a10:4", "gpu_1x_a10", "BM.GPU.A10.4"],
    "A6000": ["NVIDIA RTX A6000", "RTX A6000", "gpu:nvidia_rtx_a6000:4", "RTX_A6000", "gpu_4x_a6000", "RTXA6000:4"],
    "RTX4090": ["NVIDIA GeForce RTX 4090", "gpu:nvidia_geforce_rtx_4090:8", "gpu:rtx4090:4", "RTX_4090", "RTX4090:2"],
    "RTX5090": ["NVIDIA GeForce RTX 5090", "gpu:nvidia_geforce_rtx_5090:8", "RTX_5090", "NVIDIA-GeForce-RTX-5090"],
    "V100-16GB": ["Tesla V100-SXM2-16GB", "gpu:tesla_v100-sxm2-16gb:4", "p3.16xlarge", "V100-16GB", "BM.GPU3.8"],
    "V100-32GB": ["Tesla V100-SXM2-32GB", "gpu:tesla_v100-sxm2-32gb:8", "Tesla-V100-SXM2-32GB", "V100-32GB:8", "p3dn.24xlarge"],
    "V100-PCIe-16GB": ["Tesla V100-PCIE-16GB", "gpu:tesla_v100-pcie-16gb:2", "Standard_NC24rs_v3"],
    "V100-PCIe-32GB": ["Tesla V100-PCIE-32GB", "gpu:tesla_v100-pcie-32gb:2(S:0)"],
    "MI250X": ["AMD Instinct MI250X", "AMD Instinct MI250X/MI250", "gpu:mi250x:8", "AMD_Instinct_MI250X_OAM"],
    "MI300X": [
        "AMD Instinct MI300X",
        "AMD Instinct MI300X VF",
        "AMD_Instinct_MI300X_OAM",
        "gpu:amd_instinct_mi300x_oam:8(S:0-1)",
        "Standard_ND96isr_MI300X_v5",
    ],
    "MI325X": ["AMD Instinct MI325X", "AMD_Instinct_MI325X_OAM", "gpu:mi325x:8"],
    "MI355X": ["AMD Instinct MI355X", "AMD_Instinct_MI355X_OAM", "gpu:mi355x:8", "BM.GPU.MI355X.8"],
    "Gaudi3": ["Intel Gaudi 3", "HL-325L", "gaudi3", "gpu:gaudi3:8"],
}
UNKNOWN = [
    "gres/gpu:a100_3g.20gb",
    "gpu:nvidia_a100_80gb_pcie_1g.10gb:1",
    "nvidia_h100_80gb_hbm3_2g.20gb",
    "h100_1g.10gb",
    "NVIDIA A100-SXM4-40GB MIG 1g.5gb",
    "NVIDIA-A100-SXM4-40GB-MIG-1g.5gb",
    "gpu:1g.10gb:7",
    "gres/gpu:a100_40g",  # at a real site: a part of a card with 80 GB
    "Tesla-T4-SHARED",  # time slices
    "GRID A100-10C",
    "NVIDIA A100-SXM-64GB",
    "NVIDIA H200 NVL",
    "gpu:nvidia_h200_nvl:3",
    "NVIDIA A10M",
    "NVIDIA L40",
    "NVIDIA L4-8Q",
    "NVIDIA B200 MIG 1g.23gb",
    "nvidia_gb200_1g.23gb",
    "NVIDIA GH200 144G HBM3e MIG 1g.18gb",
    "NVIDIA H20-3e",
    "NVIDIA GB10",
    "NVIDIA A800 40GB Active",
    "NVIDIA RTX 5000 Ada Generation",
    "NVIDIA GeForce RTX 4090 D",
    "NVIDIA GeForce RTX 4090 Laptop GPU",
    "NVIDIA GeForce RTX 5090 D v2",
    "Tesla V100-SXM3-32GB",
    "Tesla V100S-PCIE-32GB",
    "AMD Instinct MI250",
    "AMD Instinct MI300A",
    "AMD Instinct MI350X",
    "Intel Gaudi 2",
    "NVIDIA RTX A5000 Laptop GPU",
    "NVIDIA GeForce RTX 3080 Ti",
    "NVIDIA GeForce RTX 3080 Laptop GPU",
    "AMD Instinct MI210X",
    "Standard_NV36ads_A10_v5",
    "g5g.16xlarge",
    "gpu:8",
    "gpu",
    "nvidia",
    "",
]
PAIRS = [(name, id_) for id_, names in NAMES.items() for name in names]


@pytest.mark.parametrize(("name", "id_"), PAIRS)
@pytest.mark.parametrize("memory_bytes", [None, 10 * GB, 500 * GB])
def test_a_real_name_is_the_device_that_it_names_whatever_the_limit(name, id_, memory_bytes) -> None:
    assert identify(name, memory_bytes) == id_


@pytest.mark.parametrize("name", UNKNOWN)
@pytest.mark.parametrize("memory_bytes", [None, 10 * GB])
def test_parts_of_devices_and_devices_without_a_file_stay_unknown(name, memory_bytes) -> None:
    assert identify(name, memory_bytes) is None


@pytest.mark.parametrize("name", ["A100", "gpu:a100:4", "NVIDIA A100", "gpu_8x_a100", "gpu_1x_a100_sxm4", "A100_SXM4"])
def test_memory_decides_between_the_sizes_of_an_a100(name) -> None:
    assert identify(name) is None
    for gigabytes, id_ in [(20, "A100-40GB"), (40 * 1.0737, "A100-40GB"), (64, "A100-80GB"), (80 * 1.0737, "A100-80GB"), (96, None)]:
        assert identify(name, round(gigabytes * GB)) == id_
    assert [device.id for device in sharing(name)] == ["A100-40GB", "A100-80GB"]


@pytest.mark.parametrize(
    ("name", "ids"),
    [("nvidia-tesla-v100", "V100-16GB V100-32GB"), ("V100_PCIE", "V100-PCIe-16GB V100-PCIe-32GB"), ("A800", "A800-40GB A800-80GB")],
)
def test_memory_decides_between_the_sizes_of_other_devices(name, ids) -> None:
    small, large = ids.split()
    assert identify(name) is None and [device.id for device in sharing(name)] == [small, large]
    assert identify(name, devices()[small].memory_bytes) == small and identify(name, devices()[large].memory_bytes) == large


def test_a_pcie_card_is_none_with_nvlink() -> None:
    assert identify("A100_PCIE", 80 * GB) == "A100-PCIe-80GB" and identify("A100_PCIE", 40 * GB) == "A100-PCIe-40GB"


@pytest.mark.parametrize("id_", catalog.names(CATALOG))
def test_an_id_is_its_own_name(id_) -> None:
    assert identify(id_) == identify(id_, 1) == id_


def test_no_name_is_in_two_files() -> None:
    for first, second in itertools.combinations(devices().values(), 2):
        assert not first.names & (second.names | second.shared) and not second.names & first.shared


def test_devices_that_share_a_name_differ_in_memory_by_far() -> None:
    for first, second in itertools.combinations(devices().values(), 2):
        if first.shared & second.shared:
            small, large = sorted((first.memory_bytes, second.memory_bytes))
            assert large > 1.5 * small


@pytest.mark.parametrize(
    ("name", "id_"),
    [("NVIDIA H200 NVL", "H200"), ("NVIDIA A100-SXM4-80GB MIG 3g.20gb", "A100-80GB"), ("GeForce RTX 3080 Ti", "RTX3080")]
    + [
        ("NVIDIA H100 NVL MIG 1g.12gb", "H100-NVL"),
        ("GeForce RTX 4090 D", "RTX4090"),
        ("Standard_NV36ads_A10_v5", "A10"),
        ("NVIDIA H20-3e", "H20"),
    ]
    + [(name, None) for name in ("NVIDIA L40", "NVIDIA RTX A4000", "g4ad.16xlarge", "")],
)
def test_the_nearest_has_the_same_chip(name, id_) -> None:
    assert nearest(name) == id_


def test_a_device_without_a_file_is_the_generic_gpu_and_that_is_said() -> None:
    cluster = Cluster(devices_per_host=8, device="NVIDIA H200 NVL", memory_limit_bytes=90 * GB)
    assert hardware_of(cluster).name == GENERIC
    said = unknown_device(cluster.device, cluster.usable_bytes)
    assert "`NVIDIA H200 NVL`" in said and "`H200` is the nearest" in said and "factor of three" in said and "\n" not in said
    assert str(catalog.root() / CATALOG) in said


@pytest.mark.parametrize("name", ["gpu:h100:8", "H100", GENERIC, "CPU"])
def test_nothing_is_said_of_a_known_device_or_of_one_that_is_meant_to_be_generic(name) -> None:
    assert unknown_device(name, GB) == ""


def test_an_alias_has_the_hardware_of_its_device() -> None:
    by_id, by_alias = (hardware_of(Cluster(devices_per_host=8, device=name, memory_limit_bytes=GB)) for name in ("T4", "Tesla T4"))
    assert by_id == by_alias


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("NVIDIA L40", "the device catalogue does not have"),
        ("GPU", "the device catalogue does not have"),
        ("CPU", "has no memory of its own"),
        ("A100", "is ambiguous: `A100-40GB`, `A100-80GB`"),
    ],
)
def test_a_size_that_nothing_tells_is_to_be_stated(name, message) -> None:
    with pytest.raises(JobError, match=message) as raised:
        memory_of(name)
    assert "memory_limit" in raised.value.hint
