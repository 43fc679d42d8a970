// A Channel that seals nothing and proves nothing: the dialler says its name and is
// believed. For measuring, and for networks whose every member is trusted.
//
// The dialler begins with "SLPLAIN2", the length of its identity (one byte) and the
// identity.
#pragma once

#include <memory>
#include <string>

#include "comm/transport/tcp/channel.h"

namespace syncline {

std::unique_ptr<Channel> DialPlain(int fd, const PeerKey& key);
std::unique_ptr<Channel> AcceptPlain(int fd, KeyFinder find_key);

}  // namespace syncline
