//! Controllers as members of a pool. A namespace is this process's alone on this host: there is no
//! other lock.

use std::io;
use std::sync::Arc;

use super::{Controller, SpdkControllers};
use crate::path::PathChoice;
use crate::path::choose::PathProvider;
use crate::path::device::{ControllerName, DeviceOpenError};
use crate::path::endurance::Endurance;
use crate::path::member::{MemberDevice, PathRequest, mixed, of_one_kind};
use crate::units::ByteCount;

struct ControllerMember {
    name: ControllerName,
    controller: Arc<Controller>,
}

/// Attaches the controller of this name.
pub(in crate::path) fn attach(
    name: &ControllerName,
) -> Result<Box<dyn MemberDevice>, DeviceOpenError> {
    match Controller::attach(name) {
        Ok(controller) => Ok(Box::new(ControllerMember { name: name.clone(), controller })),
        Err(error) => Err(refused(name, error.to_string())),
    }
}

fn refused(name: &ControllerName, why: String) -> DeviceOpenError {
    DeviceOpenError::Controller { name: name.to_string(), why }
}

impl MemberDevice for ControllerMember {
    fn name(&self) -> String {
        self.name.to_string()
    }

    fn size(&self) -> ByteCount {
        self.controller.size()
    }

    fn controller(&self) -> Option<&ControllerName> {
        Some(&self.name)
    }

    fn endurance(&self) -> Result<Endurance, String> {
        self.controller.endurance().map_err(|error| error.to_string())
    }

    fn is_block_device(&self) -> bool {
        true
    }

    fn is_remote(&self) -> bool {
        self.controller.is_remote()
    }

    fn read(&self, offset: u64, length: usize) -> io::Result<Vec<u8>> {
        self.controller.read(offset, length)
    }

    fn write(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.controller.write(offset, bytes)
    }

    fn deallocate(&self, offset: u64, length: u64) -> io::Result<()> {
        self.controller.deallocate(offset, length)
    }

    fn provider(
        &self,
        members: &[&dyn MemberDevice],
        request: &PathRequest<'_>,
    ) -> Result<Box<dyn PathProvider>, DeviceOpenError> {
        let members: Vec<&Self> = of_one_kind(members).map_err(|_| mixed(self.name()))?;
        if !matches!(request.choice, PathChoice::Auto | PathChoice::Spdk) {
            let why = "the kernel does not drive it; only the data path spdk reaches it";
            return Err(refused(&self.name, why.into()));
        }
        let controllers = members.iter().map(|member| Arc::clone(&member.controller));
        Ok(Box::new(SpdkControllers(controllers.collect())))
    }
}
