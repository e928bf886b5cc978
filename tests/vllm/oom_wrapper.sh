#!/bin/sh
# Runs a vLLM and makes it fail as one on a GPU does, once for each file in $OOM_DIR: `start` before
# it serves, `burst` while it does. The lines are those that PyTorch and vLLM write.
said() {
  echo "(EngineCore pid=$$) ERROR [core.py:100] torch.OutOfMemoryError: CUDA out of memory. Tried to allocate $1. GPU 0 has a total capacity of 39.39 GiB of which $2 is free. Process $$ has 38.90 GiB memory in use. Of the allocated memory 37.10 GiB is allocated by PyTorch, and 210.00 MiB is reserved by PyTorch but unallocated."
}
if [ -e "$OOM_DIR/start" ]; then
  rm "$OOM_DIR/start"
  said "3.50 GiB" "312.00 MiB"
  echo "(APIServer pid=$$) RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}"
  exit 1
fi
"$OOM_PYTHON" "$@" &
vllm=$!
trap 'kill -TERM $vllm' TERM
while kill -0 $vllm 2>/dev/null; do
  if [ -e "$OOM_DIR/burst" ]; then
    rm "$OOM_DIR/burst"
    said "1.20 GiB" "700.00 MiB"
    kill -KILL $vllm
    exit 1 # what is left of it is left behind
  fi
  sleep 0.2
done
wait $vllm
