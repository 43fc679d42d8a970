// A Channel without encryption and authentication: the peer that dials says its name and
// is believed. For measurements, and for networks on which every member is trusted.
//
// The dialler first sends "SLPLAIN2", the length of its identity (one byte), and the
// identity.
#pragma once

#include <memory>
#include <string>

#include "comm/transport/tcp/channel.h"

namespace syncline {

std::unique_ptr<Channel> DialPlain(int fd, const PeerKey& key);
std::unique_ptr<Channel> AcceptPlain(int fd, KeyFinder find_key);

}  // namespace syncline
