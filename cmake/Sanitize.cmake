# Adds the sanitizer of SYNCLINE_SANITIZE to every target. Code asks `#ifdef SYNCLINE_SANITIZED`, for example
# to turn target_clones off: its resolvers run before the sanitizer's runtime is up, and crash.

if(SYNCLINE_SANITIZE STREQUAL "address")
  # A check of every pointer's value costs as much compile time as all other checks together. AddressSanitizer sees
  # null by itself; alignment matters where bytes of the wire are read in place: see syncline_library.
  set(sanitize -fsanitize=address,undefined -fno-sanitize=null,alignment -fno-sanitize-recover=all)
elseif(SYNCLINE_SANITIZE STREQUAL "thread")
  set(sanitize -fsanitize=thread)
else()
  message(FATAL_ERROR "SYNCLINE_SANITIZE must be empty, address or thread, not '${SYNCLINE_SANITIZE}'")
endif()
add_compile_options(${sanitize} -fno-omit-frame-pointer)
add_link_options(${sanitize})
add_compile_definitions(SYNCLINE_SANITIZED)
