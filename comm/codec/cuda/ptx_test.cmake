# Fails if the kernels' PTX has arithmetic that a CPU would not repeat: denormals flushed
# to zero, fused multiply-add, or approximate division. Usage: cmake -DNVCC=...
# -DFLAGS=... -DROOT=... -DOUT=... -P ptx_test.cmake
separate_arguments(FLAGS)
execute_process(COMMAND ${NVCC} ${FLAGS} -I${ROOT} -arch=compute_90 -ptx ${ROOT}/comm/codec/cuda/codecs.cu -o ${OUT}
                        COMMAND_ERROR_IS_FATAL ANY)
file(READ ${OUT} ptx)
if(NOT ptx MATCHES "div\\.")
  message(FATAL_ERROR "${OUT} has no division: these are not the kernels")
endif()
foreach(forbidden "\\.ftz" "fma\\.[a-z.]*f32" "\\.approx" "div\\.full")
  if(ptx MATCHES "[^\n]*${forbidden}[^\n]*")
    message(FATAL_ERROR "${OUT}: ${CMAKE_MATCH_0}")
  endif()
endforeach()
