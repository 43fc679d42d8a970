# The libraries that Syncline links, all from the distribution (deploy/install-deps.sh installs them). Names in DEPS:
#   absl::<part>  gRPC::grpc++  protobuf::libprotobuf  ucx::ucp  spdlog::spdlog  CLI11::CLI11
#   yaml-cpp::yaml-cpp  nlohmann_json::nlohmann_json  SQLite::SQLite3  OpenSSL::SSL  OpenSSL::Crypto  prometheus-cpp::core
#   httplib::httplib  pugixml::pugixml  GTest::gmock_main  Threads::Threads

find_package(Threads REQUIRED)
find_package(PkgConfig REQUIRED)
find_package(absl REQUIRED)
find_package(Protobuf REQUIRED)
find_package(spdlog REQUIRED)
find_package(CLI11 REQUIRED)
find_package(yaml-cpp REQUIRED)
find_package(nlohmann_json REQUIRED)
find_package(SQLite3 REQUIRED)
find_package(OpenSSL REQUIRED)
find_package(prometheus-cpp REQUIRED)
find_package(pugixml REQUIRED)
if(SYNCLINE_TESTS)
  find_package(GTest REQUIRED)
endif()

# Debian's packages of these have only pkg-config files.
foreach(package "gRPC::grpc++ grpc++" "ucx::ucp ucx" "httplib::httplib cpp-httplib")
  separate_arguments(package)
  list(GET package 0 target)
  list(GET package 1 module)
  string(MAKE_C_IDENTIFIER ${module} id)
  pkg_check_modules(${id} REQUIRED IMPORTED_TARGET GLOBAL ${module})
  if(NOT TARGET ${target})
    add_library(${target} ALIAS PkgConfig::${id})
  endif()
endforeach()
if(NOT TARGET yaml-cpp::yaml-cpp)
  add_library(yaml-cpp::yaml-cpp ALIAS yaml-cpp)
endif()

find_program(PROTOC protoc REQUIRED)
find_program(GRPC_CPP_PLUGIN grpc_cpp_plugin REQUIRED)
