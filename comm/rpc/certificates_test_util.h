// Certificates for tests, made by the openssl program in a folder that ends with this.
#pragma once

#include <cstdlib>
#include <string>

#include "absl/strings/str_cat.h"
#include "comm/base/check.h"
#include "comm/base/temp_directory.h"
#include "comm/rpc/tls.h"

namespace syncline {

class TestCertificates {
 public:
  // Whether there is an openssl program.
  static bool Works() { return std::system("openssl version >/dev/null 2>&1") == 0; }

  std::string Path(const std::string& name) const {
    return absl::StrCat(directory_.path(), "/", name);
  }

  // What a process of this name is started with.
  TlsOptions Identity(const std::string& name, const std::string& ca = "ca") const {
    return {Path(name + ".crt"), Path(name + ".key"), Path(ca + ".crt")};
  }

  // Makes NAME.crt and NAME.key.
  void MakeCa(const std::string& name) const {
    OpenSsl(absl::StrCat("req -x509 ", kKey, " -days 2 -subj /CN=", name, " -keyout ",
                         Path(name + ".key"), " -out ", Path(name + ".crt")));
  }

  // Valid from now on for `days`; expired yesterday when negative. `hosts` as openssl
  // writes them: "IP:127.0.0.1,DNS:example".
  void MakeLeaf(const std::string& name, const std::string& ca, int days = 2,
                const std::string& hosts = "IP:127.0.0.1") const {
    OpenSsl(absl::StrCat("req -new ", kKey, " -subj /CN=", name,
                         " -addext subjectAltName=", hosts, " -keyout ",
                         Path(name + ".key"), " -out ", Path(name + ".csr")));
    OpenSsl(absl::StrCat("x509 -req -in ", Path(name + ".csr"),
                         " -copy_extensions copyall -CA ", Path(ca + ".crt"), " -CAkey ",
                         Path(ca + ".key"), " -CAcreateserial -days ", days, " -out ",
                         Path(name + ".crt")));
  }

 private:
  static constexpr const char* kKey =
      "-newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes";

  static void OpenSsl(const std::string& arguments) {
    const std::string command = absl::StrCat("openssl ", arguments, " 2>/dev/null");
    SYNCLINE_CHECK(std::system(command.c_str()) == 0);
  }

  TempDirectory directory_;
};

}  // namespace syncline
