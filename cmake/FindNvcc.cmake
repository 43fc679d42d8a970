# Looks for nvcc: first in PATH and /usr/local/cuda, then in NVIDIA's PyPI packages in build/venv, where
# deploy/install-deps.sh installs them. Sets NVCC; empty: there is none. Never fails.
# As a script (cmake -P cmake/FindNvcc.cmake) it prints "nvcc: <path>".

file(GLOB SYNCLINE_PIP_NVCC ${CMAKE_CURRENT_LIST_DIR}/../build/venv/lib/python3*/site-packages/nvidia/cu13/bin/nvcc)
find_program(NVCC_IN_PATH nvcc PATHS /usr/local/cuda/bin NO_CACHE)
if(CMAKE_CUDA_COMPILER)
  set(NVCC ${CMAKE_CUDA_COMPILER})
elseif(NVCC_IN_PATH)
  set(NVCC ${NVCC_IN_PATH})
else()
  file(REAL_PATH "${SYNCLINE_PIP_NVCC}" NVCC)
  if(NOT SYNCLINE_PIP_NVCC)
    set(NVCC "")
  endif()
endif()
if(CMAKE_SCRIPT_MODE_FILE AND NVCC)
  message(STATUS "nvcc: ${NVCC}")
endif()
