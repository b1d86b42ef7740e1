#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# One call on a GPU: checks the append kernel against the CPU's bytes, then times variants, reads counters, and tries
# warps and slots of attention. Beside it: tersekv_gpu_check, tersekv_gpu_bench, and tersekv_gpu_bench linked with
# append.cu compiled with -DRESIDENT=5, -DRESIDENT=6, -DMOST=1056, -DMOST=8448 as bench_r5, bench_r6, bench_m1, bench_m4.
cd "$(dirname "$0")"; chmod +x tersekv* bench_*
S=$SECONDS
timeout 60 ./tersekv_gpu_check --small | tail -15; echo "small $((SECONDS-S))"
for b in tersekv_gpu_bench bench_r5 bench_r6 bench_m1 bench_m4; do echo "== $b"; timeout 40 ./$b append k4v4-128,k8v8-128,k2v2-128 | grep -v "tokens=8192" ; done; echo "append $((SECONDS-S))"
./tersekv_gpu_bench append k3v3-128,k5v5-128,k6v6-128,k4v4-64,k4v4-256
echo "append2 $((SECONDS-S))"
timeout 60 ncu --clock-control none --launch-skip 40 --launch-count 1 -k regex:AppendKernel --metrics gpu__time_duration.sum,sm__inst_executed.sum,sm__inst_issued.avg.pct_of_peak_sustained_active,sm__inst_executed_pipe_alu.avg.pct_of_peak_sustained_active,sm__inst_executed_pipe_fma.avg.pct_of_peak_sustained_active,sm__warps_active.avg.pct_of_peak_sustained_active,sm__cycles_active.avg,dram__bytes_read.sum,dram__bytes_write.sum,smsp__average_warps_issue_stalled_short_scoreboard_per_issue_active.ratio,smsp__average_warps_issue_stalled_long_scoreboard_per_issue_active.ratio,smsp__average_warps_issue_stalled_mio_throttle_per_issue_active.ratio,smsp__average_warps_issue_stalled_not_selected_per_issue_active.ratio,smsp__average_warps_issue_stalled_math_pipe_throttle_per_issue_active.ratio,smsp__average_warps_issue_stalled_no_instruction_per_issue_active.ratio,smsp__average_warps_issue_stalled_wait_per_issue_active.ratio,smsp__average_warps_issue_stalled_lg_throttle_per_issue_active.ratio,l1tex__data_pipe_lsu_wavefronts.avg.pct_of_peak_sustained_active ./tersekv_gpu_bench append k4v4-128 2>&1 | grep -v "^==" | tail -40
echo "ncu $((SECONDS-S))"
for sh in "1,32,8,1,4096" "1,32,8,1,32768" "1,32,8,1,131072" "8,32,8,1,8192" "8,32,8,1,32768" "32,32,8,1,8192"; do for w in 12 11 10 8; do for s in 2 3 4; do ./tersekv_gpu_bench attend $sh k4v4-128 --warps $w --slots $s | sed 's/attend spec=//;s/heads=.*q_len=1//;s/page=64//;s/plan_us.*//'; done; done; [ $((SECONDS-S)) -gt 170 ] && break; done; echo "knobs $((SECONDS-S))"
timeout 90 ./tersekv_gpu_check | tail -12; echo "check $((SECONDS-S))"
