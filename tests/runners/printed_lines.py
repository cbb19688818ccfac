"""The lines that programs print of a step of 0.5 s, by format; the number of the step is left open."""

MEGATRON = (
    " [2026-01-01 00:00:00] iteration {:8d}/     100 | consumed samples:   8 | elapsed time per iteration (ms): 500.0 | lm loss: 1.0E+00 |"
)
TORCHTITAN = "[titan] 2026-01-01 00:00:00,000 - root - INFO - step: {:2}  loss:  2.50000  grad_norm:  1.00  memory:  1.50GiB(2%)  tps: 9"
TRAINER = "{{'loss': '2.5', 'grad_norm': '1', 'learning_rate': '5e-05', 'epoch': '0.{}'}}"
LIGHTNING = "Epoch 0:  10%|#         | {}/100 [00:00<00:00, 30.50it/s, loss=0.0666]"
LINES = {
    "megatron": MEGATRON,
    "torchtitan": TORCHTITAN,
    "hf-trainer": TRAINER,
    "lightning": LIGHTNING,
    "deepspeed": "[INFO] [logging.py:96:log_dist] [Rank 0] step={}, skipped=0, lr=[0.001], mom=[(0.9, 0.999)]",
    "pytorch-imagenet": "Epoch: [0][{:5}/5005]\tTime  0.500 ( 0.612)\tData  0.100 ( 0.231)\tLoss 2.5000e+00 (2.5e+00)",
    "fairseq": "INFO | train_inner | epoch 001:     10 / 1000 loss=2.5, nll_loss=2, wps=53351, ups=0.5, wpb=4, num_updates={}, lr=0.0005",
    "composer": "[epoch=1][batch={}/200]:",
    "nemo": "Training epoch 0, iteration {0}/99 | lr: 1e-06 | global_batch_size: 8 | global_step: {0} | reduced_train_loss: 2.5 "
    "| train_step_timing in s: 0.5 | consumed_samples: 16",
    "maxtext": "I0804 1 metric_logger.py:196] completed step: {}, seconds: 0.500, TFLOP/s/device: 200.0, total_weights: 3, loss: 2.5",
    "paddlenlp": "[    INFO] - loss: 2.5, learning_rate: 4e-08, global_step: {}, interval_runtime: 0.5, interval_steps_per_second: 2.0",
    "verl": "(TaskRunner pid=7) step:{} - global_seqlen/min:1234 - actor/pg_loss:2.5 - timing_s/step:0.5",
    "timm": "Train: 0 [{:4}/1251 (  4%)]  Loss: 2.5 (6.93)  Time: 0.500s,  621.20/s  (0.430s,  595.10/s)  LR: 1e-05  Data: 0.012",
    "swin": "INFO Train: [0/300][{}/1251]\teta 0:12:34 lr 0.0\t wd 0.05\ttime 0.5000 (0.43)\tloss 2.5 (6.9)\tgrad_norm 1.2 (1.3)",
    "metric-logger": "Epoch: [0]  [{:4}/5004]  eta: 1:23:45  lr: 0.001  loss: 6.91 (6.93)  time: 0.34  data: 0.0003  max mem: 4012",
    "mmengine": "- mmengine - INFO - Epoch(train)  [1][{:4}/7330]  lr: 1.98e-03  eta: 13:12:03  time: 0.54  data_time: 0.01  loss: 2.34",
    "litgpt": "Epoch 1 | iter 32 step {} | loss train: 2.5, val: n/a | iter time: 82.89 ms (step) remaining time: 0:57:01",
    "detectron2": "[11/29 10:00:00 d2.utils.events]:  eta: 1:00:00  iter: {}  total_loss: 2.345  loss_cls: 1.2  time: 0.41  lr: 0.001",
    "modded-nanogpt": "step:{}/1750 train_loss:2.5 train_time:5000ms step_avg:490.00ms",
    "olmo": "[step={}/739328,epoch=0]",
    "ms-per-step": "[0][{}/400] 500.0 ms/step",
    "step-ms": "Step {} | loss 2.5 | 500.0 ms | lr 1e-4",
    "step-s": "iteration {}: loss 2.5, took 0.5 seconds",
    "json-lines": '{{"epoch": 0, "step": {}, "loss": 2.5, "time": 0.1}}',
    "progress-bar": " 12%|#         | {}/100 [00:06<00:44,  2.00it/s, loss=2.5]",
    "s-per-step": "[{}] 0.500 s/it",
    "steps-per-s": "epoch 1 [{}]: 2.0 it/s",
    "tokens-per-s": "[{}] throughput 2.0 tokens/s",
    "step-loss": "2026-01-01 00:00:00,000 INFO gpt: Update {}/100  train_loss=2.5  |g|=0.17  secs_per_update=0.500",
}
