# Writes OUTPUT, a header that defines SYNCLINE_GIT_DESCRIBE, if its text has changed. GIT_DESCRIBE gives the text
# if there is no repository, as in a container build.
cmake_minimum_required(VERSION 3.25)
if(NOT GIT_DESCRIBE)
  execute_process(
    COMMAND git describe --tags --always --dirty
    WORKING_DIRECTORY ${SOURCE_DIR}
    OUTPUT_VARIABLE GIT_DESCRIBE
    OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
endif()
if(NOT GIT_DESCRIBE)
  set(GIT_DESCRIBE unknown)
endif()
file(CONFIGURE OUTPUT ${OUTPUT} CONTENT "#define SYNCLINE_GIT_DESCRIBE \"@GIT_DESCRIBE@\"\n" @ONLY)
