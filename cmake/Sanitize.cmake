# Adds the sanitizer of SYNCLINE_SANITIZE to every target. Code asks `#ifdef SYNCLINE_SANITIZED`, for example
# to turn target_clones off: its resolvers run before the sanitizer's runtime is up, and crash.

if(SYNCLINE_SANITIZE STREQUAL "address")
  set(sanitize -fsanitize=address,undefined -fno-sanitize-recover=all)
elseif(SYNCLINE_SANITIZE STREQUAL "thread")
  set(sanitize -fsanitize=thread)
else()
  message(FATAL_ERROR "SYNCLINE_SANITIZE must be empty, address or thread, not '${SYNCLINE_SANITIZE}'")
endif()
add_compile_options(${sanitize} -fno-omit-frame-pointer)
add_link_options(${sanitize})
add_compile_definitions(SYNCLINE_SANITIZED)
